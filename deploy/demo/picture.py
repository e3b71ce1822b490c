# SPDX-License-Identifier: Apache-2.0
"""Draws classified digits and text, with Pillow."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WHITE, GREEN, RED, GREY = (255, 255, 255), (24, 128, 56), (200, 30, 30), (120, 120, 120)
PIXELS_PER_CELL = 10
CAPTION_HEIGHT = 27
MARGIN = 12


def put_text(image, place, text, colour, scale=2, centred=False):
    """Draws enlarged text, whose left upper corner, or middle of the upper edge, is `place`."""
    font = ImageFont.load_default()
    width, height = font.getbbox(text)[2:]
    mask = Image.new('1', (width, height))
    ImageDraw.Draw(mask).text((0, 0), text, fill=1, font=font)
    mask = mask.resize((scale * width, scale * height))
    left = place[0] - mask.width / 2 if centred else place[0]
    image.paste(colour, (round(left), round(place[1])), mask)


def text_width(text, scale=2):
    return scale * ImageFont.load_default().getbbox(text)[2]


def _tile(image, predicted, true):
    """An 8 x 8 image in [0, 1], below it the prediction: green, or red with the truth in grey."""
    grey = (255 - np.rint(np.clip(image.reshape(8, 8), 0, 1) * 255)).astype(np.uint8)
    side = 8 * PIXELS_PER_CELL
    tile = Image.new('RGB', (side, side + CAPTION_HEIGHT), WHITE)
    tile.paste(Image.fromarray(grey).resize((side, side), Image.Resampling.NEAREST))
    if predicted == true:
        put_text(tile, (side / 2, side), str(predicted), GREEN, centred=True)
    else:
        put_text(tile, (side / 2 - 12, side), str(predicted), RED, centred=True)
        put_text(tile, (side / 2 + 12, side), str(true), GREY, centred=True)
    return tile


def digits_picture(images, predicted, true, columns):
    """The images as a grid, each with its labels below."""
    tiles = [_tile(*entry) for entry in zip(images, predicted, true)]
    width, height = (extent + MARGIN for extent in tiles[0].size)
    rows = -(-len(tiles) // columns)
    picture = Image.new('RGB', (columns * width + MARGIN, rows * height + MARGIN), WHITE)
    for index, tile in enumerate(tiles):
        picture.paste(tile, (MARGIN + index % columns * width, MARGIN + index // columns * height))
    return picture
