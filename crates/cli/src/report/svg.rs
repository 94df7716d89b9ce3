//! A small writer of charts: markers with ranges over a named or a logarithmic axis, as one SVG each.
//!
//! A chart draws exactly one `<circle class="marker">` a point. Colours are CSS classes `s0`..`s7`
//! that the page defines, so that light and dark work; nothing external is referred to.

use std::fmt::Write;

use crate::units;

/// Width and height of the drawing, in its own units.
const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 88.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 78.0;
const BOTTOM: f64 = 58.0;
/// Colours that the page defines.
pub const COLOURS: usize = 8;

/// How numbers of an axis are written.
pub type Format = fn(f64) -> String;

/// One value with its range over repeats.
#[derive(Clone, Debug)]
pub struct Point {
    /// Place on the x axis: a value, or the index of a name.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// Lowest and highest over repeats.
    pub range: (f64, f64),
    /// Shown when pointed at.
    pub tip: String,
}

/// Points that belong together.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Its points, ascending in x.
    pub points: Vec<Point>,
}

/// The horizontal axis.
#[derive(Clone, Debug)]
pub enum XAxis {
    /// Names, side by side.
    Names(Vec<String>),
    /// Values, by powers of two.
    Values(Vec<f64>, Format),
}

/// A chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// One line under the title.
    pub note: String,
    /// What the x axis is, with its unit.
    pub x_label: String,
    /// What the y axis is, with its unit.
    pub y_label: String,
    /// The x axis.
    pub x: XAxis,
    /// How values of the y axis are written.
    pub y_format: Format,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// The vertical scale: linear from zero, or logarithmic where values lie far apart.
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
    ticks: Vec<f64>,
}

impl Scale {
    fn of(chart: &Chart) -> Self {
        let points = || chart.series.iter().flat_map(|s| &s.points);
        let high = points().map(|p| p.y.max(p.range.1)).fold(0.0, f64::max);
        let positive = |v: &f64| *v > 0.0;
        let low = points().map(|p| p.y.min(p.range.0)).filter(positive).fold(f64::MAX, f64::min);
        if high > 0.0 && high / low > 30.0 { Self::decades(low, high) } else { Self::linear(high) }
    }

    fn linear(high: f64) -> Self {
        let high = if high > 0.0 { high * 1.08 } else { 1.0 };
        let rough = high / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .map(|m| m * power)
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(10.0 * power);
        let count = (high / step).ceil();
        let ticks = (0..=units::whole(count)).map(|i| i as f64 * step).collect();
        Self { low: 0.0, high: count * step, logarithmic: false, ticks }
    }

    fn decades(low: f64, high: f64) -> Self {
        let first = low.log10().floor();
        let last = high.log10().ceil().max(first + 1.0);
        let count = units::whole(last - first);
        let ticks = (0..=count).map(|i| 10f64.powf(first + i as f64)).collect();
        Self { low: 10f64.powf(first), high: 10f64.powf(last), logarithmic: true, ticks }
    }

    fn y(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            let low = self.low.log10();
            (value.max(self.low).log10() - low) / (self.high.log10() - low)
        } else {
            value / self.high
        };
        HEIGHT - BOTTOM - share.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }
}

impl Chart {
    /// The drawing.
    pub fn svg(&self) -> String {
        let scale = Scale::of(self);
        let mut out = String::new();
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n\
             <text class=\"title\" x=\"16\" y=\"24\">{}</text>\n\
             <text class=\"note\" x=\"16\" y=\"42\">{}</text>\n",
            escape(&self.title),
            escape(&self.title),
            escape(&self.note)
        );
        self.legend(&mut out);
        self.y_axis(&mut out, &scale);
        self.x_axis(&mut out);
        for (i, series) in self.series.iter().enumerate() {
            self.draw_series(&mut out, &scale, i, series);
        }
        out.push_str("</svg>\n");
        out
    }

    fn legend(&self, out: &mut String) {
        let mut x = 16.0;
        for (i, series) in self.series.iter().enumerate() {
            let _ = writeln!(
                out,
                "<rect class=\"key s{}\" x=\"{x:.1}\" y=\"53\" width=\"11\" height=\"11\" rx=\"3\"/>\
                 <text class=\"legend\" x=\"{:.1}\" y=\"62.5\">{}</text>",
                i % COLOURS,
                x + 16.0,
                escape(&series.name)
            );
            x += 34.0 + 6.6 * series.name.chars().count() as f64;
        }
    }

    fn y_axis(&self, out: &mut String, scale: &Scale) {
        for &tick in &scale.ticks {
            let y = scale.y(tick);
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick end\" x=\"{}\" y=\"{:.1}\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.0,
                escape(&(self.y_format)(tick))
            );
        }
        let middle = TOP + (HEIGHT - TOP - BOTTOM) / 2.0;
        let kind = if scale.logarithmic { " (logarithmic)" } else { "" };
        let _ = writeln!(
            out,
            "<text class=\"axis middle\" transform=\"translate(14 {middle:.1}) rotate(-90)\">{}{kind}</text>",
            escape(&self.y_label)
        );
    }

    fn x_axis(&self, out: &mut String) {
        let base = HEIGHT - BOTTOM;
        let _ = writeln!(
            out,
            "<line class=\"base\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{base}\" y2=\"{base}\"/>",
            WIDTH - RIGHT
        );
        let ticks: Vec<(f64, String)> = match &self.x {
            XAxis::Names(names) => {
                names.iter().enumerate().map(|(i, name)| (i as f64, name.clone())).collect()
            }
            XAxis::Values(values, format) => values.iter().map(|v| (*v, format(*v))).collect(),
        };
        for (value, name) in ticks {
            let x = self.x(value);
            let _ = writeln!(
                out,
                "<line class=\"base\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{base}\" y2=\"{}\"/>\
                 <text class=\"tick middle\" x=\"{x:.1}\" y=\"{}\">{}</text>",
                base + 5.0,
                base + 20.0,
                escape(&name)
            );
        }
        let _ = writeln!(
            out,
            "<text class=\"axis middle\" x=\"{:.1}\" y=\"{}\">{}</text>",
            LEFT + (WIDTH - LEFT - RIGHT) / 2.0,
            HEIGHT - 12.0,
            escape(&self.x_label)
        );
    }

    /// Place of a value on the x axis.
    fn x(&self, value: f64) -> f64 {
        let span = WIDTH - LEFT - RIGHT;
        match &self.x {
            XAxis::Names(names) => LEFT + span * (value + 0.5) / names.len().max(1) as f64,
            XAxis::Values(values, _) => {
                let low = values.iter().copied().fold(f64::MAX, f64::min).max(1e-9).log2();
                let high = values.iter().copied().fold(0.0, f64::max).max(1e-9).log2();
                let inset = 56.0;
                let share = if high > low { (value.log2() - low) / (high - low) } else { 0.5 };
                LEFT + inset + share * (span - 2.0 * inset)
            }
        }
    }

    fn draw_series(&self, out: &mut String, scale: &Scale, index: usize, series: &Series) {
        let colour = index % COLOURS;
        // Series of one value axis stand side by side a little, so that none hides another.
        let dodge = match self.x {
            XAxis::Names(_) => 0.0,
            XAxis::Values(..) => (index as f64 - (self.series.len() as f64 - 1.0) / 2.0) * 9.0,
        };
        if series.points.len() > 1 && matches!(self.x, XAxis::Values(..)) {
            let line: Vec<String> = series
                .points
                .iter()
                .map(|p| format!("{:.1},{:.1}", self.x(p.x) + dodge, scale.y(p.y)))
                .collect();
            let _ =
                writeln!(out, "<polyline class=\"line s{colour}\" points=\"{}\"/>", line.join(" "));
        }
        for point in &series.points {
            let (x, y) = (self.x(point.x) + dodge, scale.y(point.y));
            let (low, high) = (scale.y(point.range.0), scale.y(point.range.1));
            let (from, to) = (x - 5.0, x + 5.0);
            let _ = writeln!(
                out,
                "<g><title>{}</title><path class=\"range s{colour}\" d=\"M{x:.1} {low:.1}V{high:.1}\
                 M{from:.1} {low:.1}H{to:.1}M{from:.1} {high:.1}H{to:.1}\"/>\
                 <circle class=\"marker s{colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\"/>{}</g>",
                escape(&point.tip),
                self.value_label(point, x, y, high)
            );
        }
    }

    /// The value beside its marker, where names leave room for it.
    fn value_label(&self, point: &Point, x: f64, y: f64, high: f64) -> String {
        match &self.x {
            XAxis::Names(names) if names.len() <= 8 => format!(
                "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + 10.0,
                if high < y - 14.0 { y + 4.0 } else { y - 6.0 },
                escape(&(self.y_format)(point.y))
            ),
            _ => String::new(),
        }
    }
}

/// Text as XML has it.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(ys: &[f64]) -> Chart {
        let points = ys
            .iter()
            .enumerate()
            .map(|(i, y)| Point {
                x: i as f64,
                y: *y,
                range: (*y * 0.9, *y * 1.1),
                tip: "<t>".into(),
            })
            .collect();
        Chart {
            title: "a & b".into(),
            note: String::new(),
            x_label: "path".into(),
            y_label: "I/Os a second".into(),
            x: XAxis::Names((0..ys.len()).map(|i| format!("n{i}")).collect()),
            y_format: units::count,
            series: vec![Series { name: "one".into(), points }],
        }
    }

    #[test]
    fn one_marker_a_point_and_nothing_external() {
        let svg = chart(&[1.0, 5.0, 3.0]).svg();
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("a &amp; b") && svg.contains("&lt;t&gt;"));
        assert!(!svg.contains("http") && !svg.contains("href"));
    }

    #[test]
    fn far_apart_values_get_decades() {
        let wide = Scale::of(&chart(&[3.0, 40_000.0]));
        assert!(wide.logarithmic && wide.ticks.len() >= 5);
        let narrow = Scale::of(&chart(&[3.0, 4.0]));
        assert!(!narrow.logarithmic && narrow.high >= 4.4);
        assert!((5..=9).contains(&narrow.ticks.len()), "{:?}", narrow.ticks);
        let nothing = Scale::of(&chart(&[0.0]));
        assert!(nothing.high > 0.0);
    }
}
