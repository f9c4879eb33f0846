#include "tools/run/calibration_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/run/terminal.h"

namespace duet::run {
namespace {

// Lengths in user units; percent on both axes.
constexpr double kWidth = 720, kHeight = 440;
constexpr double kLeft = 76, kRight = 696, kTop = 84, kBottom = 372;

// Plain rules, no variables: many readers of SVG know no more.
constexpr std::string_view kStyle = R"(<style>
  text { font-size: 13px; font-family: system-ui, "DejaVu Sans", sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .paper, .mark { fill: #ffffff; }
  .grid { stroke: #d0d7de; } .axis { stroke: #1f2328; } .wish { stroke: #1f2328; stroke-dasharray: 2 5; }
  .line { fill: none; stroke-width: 2.25; stroke-linejoin: round; }
  .score { stroke-dasharray: 9 4; } .noul { stroke-dasharray: 3 3; }
  .choice { stroke: #0b5cad; } .score { stroke: #b3470b; } .noul { stroke: #1a7f37; }
  .mark { stroke-width: 2.5; stroke-dasharray: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .paper, .mark { fill: #0d1117; }
    .grid { stroke: #30363d; } .axis, .wish { stroke: #e6edf3; }
    .choice { stroke: #6cb6ff; } .score { stroke: #ffa057; } .noul { stroke: #6bd68a; }
  }
</style>
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : without_controls(text)) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

struct Place {
  double sent = 0;   ///< Percent of the questions.
  double right = 0;  ///< Percent of what counts as accuracy.
};

struct Curve {
  const GateReport* gate = nullptr;
  std::vector<Place> places;  ///< Without points at which nothing is kept.
};

Place place_of(const GateReport& gate, const GatePoint& point) {
  return {100 * static_cast<double>(point.escalated) / static_cast<double>(gate.accuracy.cases),
          100 * gate.accuracy.of(point).value_or(0)};
}

/// What is drawn of a gate. Without a deep model the ends with few kept answers are left out, as GateAccuracy says.
Curve curve_of(const GateReport& gate) {
  Curve curve{.gate = &gate, .places = {}};
  for (const GatePoint& point : gate.points)
    if (gate.accuracy.of(point)) curve.places.push_back(place_of(gate, point));
  return curve;
}

/// The axis of right answers: whole steps around all that is drawn.
struct Scale {
  double low = 0, high = 100, step = 10;

  double x(double percent) const { return kLeft + (kRight - kLeft) * percent / 100; }
  double y(double percent) const { return kBottom - (kBottom - kTop) * (percent - low) / (high - low); }
};

Scale scale_of(const std::vector<Curve>& curves, const std::optional<double>& wish) {
  double low = 100, high = 0;
  const auto include = [&](double percent) {
    low = std::min(low, percent);
    high = std::max(high, percent);
  };
  for (const Curve& curve : curves)
    for (const Place& place : curve.places) include(place.right);
  if (wish) include(100 * *wish);
  Scale scale;
  for (const double step : {1.0, 2.0, 5.0, 10.0, 20.0}) {
    scale.step = step;
    if (high - low <= 6 * step) break;
  }
  scale.low = std::max(0.0, scale.step * std::floor(low / scale.step));
  scale.high = std::min(100.0, scale.step * std::ceil(high / scale.step));
  if (scale.high - scale.low < scale.step) scale.low = scale.high - scale.step;
  return scale;
}

std::string text(double x, double y, std::string_view anchor, std::string_view content, std::string_view more = {}) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more, content);
}

std::string stroke(std::string_view kind, double x1, double y1, double x2, double y2) {
  return fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kind, x1, y1, x2,
                     y2);
}

std::string axes(const Scale& scale, const CalibrationReport& report) {
  std::string svg;
  for (int percent = 0; percent <= 100; percent += 20) {
    svg += stroke("grid", scale.x(percent), kTop, scale.x(percent), kBottom);
    svg += text(scale.x(percent), kBottom + 20, "middle", fmt::format("{} %", percent));
  }
  for (double percent = scale.low; percent < scale.high + scale.step / 2; percent += scale.step) {
    svg += stroke("grid", kLeft, scale.y(percent), kRight, scale.y(percent));
    svg += text(kLeft - 8, scale.y(percent) + 4.5, "end", fmt::format("{:.0f} %", percent));
  }
  svg += stroke("axis", kLeft, kBottom, kRight, kBottom) + stroke("axis", kLeft, kTop, kLeft, kBottom);
  const bool routed = !report.rules.deep.empty();
  svg += text((kLeft + kRight) / 2, kHeight - 20, "middle",
              routed ? fmt::format("questions sent on to {}", escaped(report.rules.deep)) : "questions sent on");
  const double middle = (kTop + kBottom) / 2;
  svg += text(20, middle, "middle", routed ? "answers right, of all" : "answers right, of those kept",
              fmt::format(" transform=\"rotate(-90 20 {:.1f})\"", middle));
  if (report.accuracy) {
    const double y = scale.y(100 * *report.accuracy);
    svg += stroke("wish", kLeft, y, kRight, y);
    svg += text(kRight, y - 5, "end", fmt::format("wished {:.4g} %", 100 * *report.accuracy));
  }
  return svg;
}

std::string line(const Curve& curve, const Scale& scale) {
  std::string points;
  for (const Place& place : curve.places)
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", scale.x(place.sent), scale.y(place.right));
  return fmt::format("<polyline class=\"line {}\" points=\"{}\"/>\n", name_of(curve.gate->kind), points);
}

std::string mark(const GateReport& gate, const Scale& scale) {
  if (!gate.choice || !gate.accuracy.of(gate.points[gate.choice->point])) return {};
  const Place place = place_of(gate, gate.points[gate.choice->point]);
  return fmt::format("<circle class=\"mark {}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\"/>\n", name_of(gate.kind),
                     scale.x(place.sent), scale.y(place.right));
}

std::string legend(const std::vector<Curve>& curves) {
  std::string svg;
  double x = kLeft;
  for (const Curve& curve : curves) {
    const std::string kind(name_of(curve.gate->kind));
    svg += stroke("line " + kind, x, 60, x + 34, 60);
    const std::string label = curve.gate->choice ? fmt::format("{}, below {:.3f}", kind,
                                                               curve.gate->points[curve.gate->choice->point].threshold)
                                                 : fmt::format("{}, {} questions", kind, curve.gate->accuracy.cases);
    svg += text(x + 42, 64.5, "start", label);
    x += (kRight - kLeft) / 3;
  }
  return svg;
}

}  // namespace

std::string chart_of(const CalibrationReport& report) {
  std::vector<Curve> curves;
  for (const GateReport& gate : report.gates) curves.push_back(curve_of(gate));
  const Scale scale = scale_of(curves, report.accuracy);
  const std::string title = fmt::format("Answers right when {} sends on what it is not sure of ({})",
                                        escaped(report.rules.fast), escaped(report.rules.measure));
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n"
      "<title>{2}</title>\n{3}<rect class=\"paper\" width=\"{0}\" height=\"{1}\"/>\n",
      kWidth, kHeight, title, kStyle);
  svg += text(kLeft, 32, "start", title, " class=\"title\"");
  svg += axes(scale, report);
  for (const Curve& curve : curves) svg += line(curve, scale);
  for (const Curve& curve : curves) svg += mark(*curve.gate, scale);
  return svg + legend(curves) + "</svg>\n";
}

}  // namespace duet::run
