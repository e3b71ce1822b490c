// SPDX-License-Identifier: Apache-2.0
#ifndef DEEPPCR_CLIENT_CURVE_PICTURE_H_
#define DEEPPCR_CLIENT_CURVE_PICTURE_H_

// Curves over the steps of a training run, as a picture.

#include <string>
#include <vector>

#include "client/png.h"

namespace deeppcr {

struct CurvePoint {
  double x = 0, y = 0;  // a point that is not finite is left out, and so is the line to it
};

struct Curve {
  std::vector<CurvePoint> points;  // by rising x
  Colour colour;
  bool marked = false;  // with a square at every point
};

// One diagram: its curves share the axes, which are labelled by numbers; that of x begins at 0.
struct Panel {
  std::vector<Curve> curves;
  bool logarithmic = false;  // in y; a point that is not above 0 is left out, too
};

// The panels above one another; one without points is left empty.
Picture DrawPanels(const std::vector<Panel>& panels);

}  // namespace deeppcr

#endif  // DEEPPCR_CLIENT_CURVE_PICTURE_H_
