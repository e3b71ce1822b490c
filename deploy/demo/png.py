# SPDX-License-Identifier: Apache-2.0
"""Writes PNG pictures of digits with nothing but NumPy and the standard library."""

import struct
import zlib

import numpy as np

# Ten glyphs of 5 x 7 dots, one row of dots per number, most significant bit left.
GLYPHS = (
    (14, 17, 19, 21, 25, 17, 14), (4, 12, 4, 4, 4, 4, 14), (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14), (2, 6, 10, 18, 31, 2, 2), (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14), (31, 1, 2, 4, 8, 8, 8), (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12))
WHITE = np.array([255, 255, 255], np.uint8)
GREEN = np.array([24, 128, 56], np.uint8)
RED = np.array([200, 30, 30], np.uint8)
GREY = np.array([120, 120, 120], np.uint8)
PIXELS_PER_CELL = 10
PIXELS_PER_DOT = 3
CAPTION_HEIGHT = 9 * PIXELS_PER_DOT
MARGIN = 12


def _glyph(digit, colour):
    """The digit as [21, 15, 3] pixels."""
    dots = np.array([[row >> bit & 1 for bit in range(4, -1, -1)] for row in GLYPHS[digit]], bool)
    dots = dots.repeat(PIXELS_PER_DOT, 0).repeat(PIXELS_PER_DOT, 1)
    return np.where(dots[..., None], colour, WHITE)


def _put(canvas, top, left, picture):
    canvas[top:top + picture.shape[0], left:left + picture.shape[1]] = picture


def _tile(image, predicted, true):
    """An 8 x 8 image in [0, 1], below it the prediction: green, or red with the truth in grey."""
    grey = (255 - np.rint(np.clip(image.reshape(8, 8), 0, 1) * 255)).astype(np.uint8)
    grey = grey.repeat(PIXELS_PER_CELL, 0).repeat(PIXELS_PER_CELL, 1)
    side = grey.shape[0]
    tile = np.full((side + CAPTION_HEIGHT, side, 3), 255, np.uint8)
    tile[:side] = grey[..., None]
    if predicted == true:
        _put(tile, side + PIXELS_PER_DOT, (side - 15) // 2, _glyph(predicted, GREEN))
    else:
        _put(tile, side + PIXELS_PER_DOT, side // 2 - 20, _glyph(predicted, RED))
        _put(tile, side + PIXELS_PER_DOT, side // 2 + 5, _glyph(true, GREY))
    return tile


def digits_picture(images, predicted, true, columns):
    """[height, width, 3] uint8: the images as a grid, each with its labels below."""
    tiles = [_tile(*entry) for entry in zip(images, predicted, true)]
    height, width = (extent + MARGIN for extent in tiles[0].shape[:2])
    rows = -(-len(tiles) // columns)
    canvas = np.full((rows * height + MARGIN, columns * width + MARGIN, 3), 255, np.uint8)
    for index, tile in enumerate(tiles):
        _put(canvas, MARGIN + index // columns * height, MARGIN + index % columns * width, tile)
    return canvas


def _chunk(kind, payload):
    checksum = zlib.crc32(kind + payload)
    return struct.pack('>I', len(payload)) + kind + payload + struct.pack('>I', checksum)


def write_png(path, pixels):
    """Writes [height, width, 3] uint8 as an RGB PNG."""
    height, width, _ = pixels.shape
    rows = b''.join(b'\0' + row.tobytes() for row in pixels)
    with open(path, 'wb') as file:
        file.write(b'\x89PNG\r\n\x1a\n')
        file.write(_chunk(b'IHDR', struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)))
        file.write(_chunk(b'IDAT', zlib.compress(rows, 9)))
        file.write(_chunk(b'IEND', b''))
