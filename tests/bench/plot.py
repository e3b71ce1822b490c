# SPDX-License-Identifier: Apache-2.0
"""Line plots over logarithmic axes, with Pillow."""

import math

import picture
from PIL import Image, ImageDraw

WIDTH, HEIGHT = 960, 600
LEFT, RIGHT, TOP, BOTTOM = 110, 250, 40, 80  # margins; the legend is in the right one
BLACK, GRID = (40, 40, 40), (225, 225, 225)


def share(value, ends, logarithmic=True):
    """Where between the ends a value lies: 0 at the first, 1 at the second."""
    if not logarithmic:
        return (value - ends[0]) / (ends[1] - ends[0])
    return math.log(value / ends[0]) / math.log(ends[1] / ends[0])


class Canvas:
    def __init__(self, x_range, y_range, logarithmic_x=True):
        self.logarithmic_x = logarithmic_x
        self.image = Image.new('RGB', (WIDTH, HEIGHT), picture.WHITE)
        self.draw = ImageDraw.Draw(self.image)
        self.x_range, self.y_range = x_range, y_range

    def place(self, x, y):
        """Pixels of a point, column and row."""
        across = share(x, self.x_range, self.logarithmic_x)
        up = share(y, self.y_range)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def line(self, begin, end, colour, dashed=False, width=3):
        pieces = max(int(math.dist(begin, end) / 8), 1)
        at = [tuple(b + (e - b) * i / pieces for b, e in zip(begin, end)) for i in range(pieces + 1)]
        for piece in range(0, pieces, 2 if dashed else 1):
            self.draw.line((at[piece], at[piece + 1]), fill=colour, width=width)

    def text(self, place, text, centred=False):
        picture.put_text(self.image, place, text, BLACK, centred=centred)


def draw_axes(canvas, x_ticks, y_ticks, x_title, y_title):
    for x in x_ticks:
        bottom, top = (canvas.place(x, y) for y in canvas.y_range)
        canvas.draw.line((bottom, top), fill=GRID)
        canvas.text((bottom[0], bottom[1] + 10), str(x), centred=True)
    for y in y_ticks:
        left, right = (canvas.place(x, y) for x in canvas.x_range)
        canvas.draw.line((left, right), fill=GRID)
        canvas.text((left[0] - picture.text_width(f'{y:g}') - 8, left[1] - 10), f'{y:g}')
    canvas.text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 40), x_title, centred=True)
    canvas.text((LEFT, 10), y_title)


def decades(values):
    """Powers of ten around them."""
    return [10.0 ** power for power in range(math.floor(math.log10(min(values))),
                                             math.ceil(math.log10(max(values))) + 1)]


def semi_log(series, x_title, y_title):
    """An image of {label: (colour, width, [(x, y), ...])}, x from 0 and linear."""
    xs, ys = zip(*(point for _, _, line in series.values() for point in line))
    step = 10 ** math.floor(math.log10(max(xs)))
    y_ticks = decades(ys)
    canvas = Canvas((0, max(xs)), (min(y_ticks), max(y_ticks)), logarithmic_x=False)
    draw_axes(canvas, range(0, max(xs) + 1, step), y_ticks, x_title, y_title)
    for index, (label, (colour, width, line)) in enumerate(series.items()):
        canvas.draw.line([canvas.place(x, y) for x, y in line], fill=colour, width=width)
        row = TOP + 24 * index
        canvas.line((WIDTH - RIGHT + 14, row + 10), (WIDTH - RIGHT + 44, row + 10), colour,
                    width=width)
        canvas.text((WIDTH - RIGHT + 54, row), label)
    return canvas.image


def log_log(series, x_title, y_title):
    """An image of {label: (colour, dashed, [(x, y), ...])}."""
    xs, ys = zip(*(point for _, _, line in series.values() for point in line))
    x_ticks = sorted(set(xs))[::2]
    y_ticks = [10 ** power for power in range(int(math.log10(min(ys))),
                                              math.ceil(math.log10(max(ys))) + 1)]
    canvas = Canvas((min(xs), max(xs)), (min(y_ticks), max(y_ticks)))
    draw_axes(canvas, x_ticks, y_ticks, x_title, y_title)
    for index, (label, (colour, dashed, line)) in enumerate(series.items()):
        places = [canvas.place(x, y) for x, y in line]
        for begin, end in zip(places, places[1:]):
            canvas.line(begin, end, colour, dashed)
        for x, y in places:
            canvas.draw.rectangle((x - 3, y - 3, x + 3, y + 3), fill=colour)
        row = TOP + 24 * index
        canvas.line((WIDTH - RIGHT + 14, row + 10), (WIDTH - RIGHT + 44, row + 10), colour, dashed)
        canvas.text((WIDTH - RIGHT + 54, row), label)
    return canvas.image
