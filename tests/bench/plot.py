# SPDX-License-Identifier: Apache-2.0
"""Line plots over two logarithmic axes, with nothing but NumPy and deploy/demo/png.py."""

import numpy as np

# Glyphs of 5 x 7 dots, one row of dots per number, most significant bit left.
GLYPHS = {
    '0': (14, 17, 19, 21, 25, 17, 14), '1': (4, 12, 4, 4, 4, 4, 14),
    '2': (14, 17, 1, 2, 4, 8, 31), '3': (31, 2, 4, 2, 1, 17, 14),
    '4': (2, 6, 10, 18, 31, 2, 2), '5': (31, 16, 30, 1, 1, 17, 14),
    '6': (6, 8, 16, 30, 17, 17, 14), '7': (31, 1, 2, 4, 8, 8, 8),
    '8': (14, 17, 17, 14, 17, 17, 14), '9': (14, 17, 17, 15, 1, 2, 12),
    'C': (14, 17, 16, 16, 16, 17, 14), 'L': (16, 16, 16, 16, 16, 16, 31),
    'a': (0, 0, 14, 1, 15, 17, 15), 'b': (16, 16, 30, 17, 17, 17, 30),
    'e': (0, 0, 14, 17, 31, 16, 14), 'g': (0, 0, 15, 17, 15, 1, 14),
    'h': (16, 16, 30, 17, 17, 17, 17), 'i': (4, 0, 12, 4, 4, 4, 14),
    'l': (12, 4, 4, 4, 4, 4, 14), 'n': (0, 0, 30, 17, 17, 17, 17),
    'q': (0, 0, 15, 17, 15, 1, 1), 'r': (0, 0, 22, 25, 16, 16, 16),
    's': (0, 0, 15, 16, 14, 1, 30), 't': (8, 8, 28, 8, 8, 9, 6),
    'u': (0, 0, 17, 17, 17, 19, 13), 'd': (1, 1, 15, 17, 17, 17, 15),
    'p': (0, 0, 30, 17, 30, 16, 16), 'w': (0, 0, 17, 17, 21, 21, 10),
    'o': (0, 0, 14, 17, 17, 17, 14), 'x': (0, 0, 17, 10, 4, 10, 17),
    '=': (0, 0, 31, 0, 31, 0, 0), ',': (0, 0, 0, 0, 4, 4, 8), '.': (0, 0, 0, 0, 0, 12, 12),
    ' ': (0,) * 7}
WIDTH, HEIGHT = 960, 600
LEFT, RIGHT, TOP, BOTTOM = 110, 250, 40, 80  # margins; the legend is in the right one
DOT = 2
BLACK, GRID = (40, 40, 40), (225, 225, 225)


class Canvas:
    def __init__(self, x_range, y_range):
        self.pixels = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
        self.x_range, self.y_range = np.log(x_range), np.log(y_range)

    def place(self, x, y):
        """Pixels of a point, column and row."""
        across = (np.log(x) - self.x_range[0]) / (self.x_range[1] - self.x_range[0])
        up = (np.log(y) - self.y_range[0]) / (self.y_range[1] - self.y_range[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def dot(self, column, row, size, colour):
        top, left = int(round(row)) - size // 2, int(round(column)) - size // 2
        self.pixels[max(top, 0):top + size, max(left, 0):left + size] = colour

    def line(self, begin, end, size, colour, dashed=False):
        length = int(max(abs(begin[0] - end[0]), abs(begin[1] - end[1]), 1))
        for step in range(length + 1):
            if dashed and step // 8 % 2:
                continue
            share = step / length
            self.dot(begin[0] + share * (end[0] - begin[0]),
                     begin[1] + share * (end[1] - begin[1]), size, colour)

    def text(self, column, row, text, colour=BLACK):
        """Its left upper corner."""
        for index, character in enumerate(text):
            for y, bits in enumerate(GLYPHS[character]):
                for x in range(5):
                    if bits >> (4 - x) & 1:
                        self.dot(column + (6 * index + x) * DOT, row + y * DOT, DOT, colour)


def text_width(text):
    return 6 * DOT * len(text)


def draw_axes(canvas, x_ticks, y_ticks, x_title, y_title):
    for x in x_ticks:
        bottom, top = (canvas.place(x, np.exp(y)) for y in canvas.y_range)
        canvas.line(bottom, top, 1, GRID)
        canvas.text(bottom[0] - text_width(str(x)) / 2, bottom[1] + 10, str(x))
    for y in y_ticks:
        left, right = (canvas.place(np.exp(x), y) for x in canvas.x_range)
        canvas.line(left, right, 1, GRID)
        canvas.text(left[0] - text_width(str(y)) - 8, left[1] - 7, str(y))
    canvas.text((LEFT + WIDTH - RIGHT - text_width(x_title)) / 2, HEIGHT - 36, x_title)
    canvas.text(LEFT, 14, y_title)


def log_log(series, x_title, y_title):
    """[height, width, 3] uint8 of {label: (colour, dashed, [(x, y), ...])}."""
    points = [point for _, _, line in series.values() for point in line]
    xs, ys = zip(*points)
    x_ticks = sorted(set(xs))[::2]
    y_ticks = [10 ** power for power in range(int(np.log10(min(ys))),
                                              int(np.ceil(np.log10(max(ys)))) + 1)]
    canvas = Canvas((min(xs), max(xs)), (min(y_ticks), max(y_ticks)))
    draw_axes(canvas, x_ticks, y_ticks, x_title, y_title)
    for index, (label, (colour, dashed, line)) in enumerate(series.items()):
        places = [canvas.place(x, y) for x, y in line]
        for begin, end in zip(places, places[1:]):
            canvas.line(begin, end, 3, colour, dashed)
        for place in places:
            canvas.dot(*place, 7, colour)
        row = TOP + 24 * index
        canvas.line((WIDTH - RIGHT + 14, row + 7), (WIDTH - RIGHT + 44, row + 7), 3, colour, dashed)
        canvas.text(WIDTH - RIGHT + 54, row, label)
    return canvas.pixels
