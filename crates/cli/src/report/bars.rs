//! Grouped bars as one SVG file that needs nothing else: bandwidth over SM counts, a bar a system.

use std::fmt::Write;

use crate::report::svg::escape;

const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 86.0;
const BOTTOM: f64 = 52.0;
const GROUP: f64 = 110.0;
const WIDTH_MIN: f64 = 560.0;
const COLOURS: [&str; 4] = ["#1f77b4", "#2ca02c", "#d9622b", "#8e44c9"];

/// Bars of one system, one a group.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Name in the legend.
    pub name: String,
    /// Heights; a group may lack one.
    pub values: Vec<Option<f64>>,
}

/// Where things lie: width of the drawing, base line, and the value at the top.
struct Frame {
    width: f64,
    base: f64,
    top: f64,
}

/// The drawing. The values stand over their bars.
pub fn grouped_bars(
    title: &str,
    note: &str,
    groups: &[String],
    y: &str,
    series: &[Bars],
) -> String {
    // Wide enough for title and legend too.
    let width = (LEFT + RIGHT + GROUP * groups.len().max(1) as f64).max(WIDTH_MIN);
    let highest = series.iter().flat_map(|bars| &bars.values).flatten().copied();
    let top = highest.fold(0.0, f64::max).max(1e-9) * 1.1;
    let frame = Frame { width, base: HEIGHT - BOTTOM, top };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"24\" font-size=\"16\">{}</text>\n\
         <text x=\"16\" y=\"42\" fill=\"#8a2f00\">{}</text>\n",
        escape(title),
        escape(note)
    );
    frame.grid(&mut out);
    for (n, bars) in series.iter().enumerate() {
        frame.bars(&mut out, n, series.len(), bars);
    }
    frame.labels(&mut out, groups, y);
    out.push_str("</svg>\n");
    out
}

impl Frame {
    fn grid(&self, out: &mut String) {
        for step in 0..=5 {
            let share = f64::from(step) / 5.0;
            let at = self.base - (self.base - TOP) * share;
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" \
                 stroke=\"#dddddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                self.width - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                number(self.top * share)
            );
        }
    }

    /// One system's bars, and its key.
    fn bars(&self, out: &mut String, n: usize, of: usize, bars: &Bars) {
        let colour = COLOURS[n % COLOURS.len()];
        let key = 16.0 + 130.0 * n as f64;
        let _ = writeln!(
            out,
            "<rect x=\"{key}\" y=\"54\" width=\"11\" height=\"11\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"64\">{}</text>",
            key + 16.0,
            escape(&bars.name)
        );
        let bar = GROUP * 0.84 / of.max(1) as f64;
        for (group, value) in bars.values.iter().enumerate() {
            let Some(value) = value else { continue };
            let x = LEFT + GROUP * (group as f64 + 0.08) + bar * n as f64;
            let height = (self.base - TOP) * value / self.top;
            let y = self.base - height;
            let _ = writeln!(
                out,
                "<rect class=\"bar\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
                 height=\"{height:.1}\" fill=\"{colour}\" stroke=\"#000000\" \
                 stroke-width=\"0.5\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"9\" text-anchor=\"middle\">{}</text>",
                bar * 0.9,
                x + bar * 0.45,
                y - 4.0,
                number(*value)
            );
        }
    }

    fn labels(&self, out: &mut String, groups: &[String], y: &str) {
        for (n, group) in groups.iter().enumerate() {
            let _ = writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                LEFT + GROUP * (n as f64 + 0.5),
                self.base + 18.0,
                escape(group)
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">SMs</text>\n\
             <text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            LEFT + (self.width - LEFT - RIGHT) / 2.0,
            HEIGHT - 12.0,
            TOP + (self.base - TOP) / 2.0,
            escape(y)
        );
    }
}

/// Three significant digits or so.
fn number(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_a_value_and_the_note_is_there() {
        let groups = ["1".to_owned(), "96".to_owned()];
        let bars = |name: &str, values| Bars { name: name.to_owned(), values };
        let series =
            [bars("BaM", vec![Some(1.0), Some(2.5)]), bars("CoPilotIO", vec![None, Some(0.5)])];
        let svg = grouped_bars("reads", "simulated <x>", &groups, "GiB/s", &series);
        assert_eq!(svg.matches("class=\"bar\"").count(), 3);
        assert!(svg.contains("simulated &lt;x&gt;") && svg.contains(">2.50<"));
        assert!(svg.contains(">96<") && svg.contains("CoPilotIO"));
    }
}
