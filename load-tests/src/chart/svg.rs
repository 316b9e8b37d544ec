//! The few elements a chart is made of.

use std::fmt::Write;

/// Colours that can be told apart by all, on white.
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#555555",
];
/// Lines that share a colour are told apart by these.
const DASHES: [&str; 3] = ["", "6 3", "2 3"];
pub(super) const GREY: &str = "#666666";
const GRID: &str = "#dddddd";
const INK: &str = "#222222";

pub(super) const FONT_SIZE: f64 = 12.0;
pub(super) const TITLE_SIZE: f64 = 15.0;
pub(super) const WIDTH: f64 = 820.0;
/// Of an average letter, a little generous: fonts are the viewer's.
const LETTER: f64 = 7.1;

/// How wide a text is, about.
pub(super) fn width_of(text: &str) -> f64 {
    text.chars().count() as f64 * LETTER
}

pub(super) fn colour(series: usize) -> &'static str {
    COLOURS[series % COLOURS.len()]
}

fn dash(series: usize) -> &'static str {
    DASHES[series / COLOURS.len() % DASHES.len()]
}

#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture in the making. Coordinates are pixels from the upper left.
pub(super) struct Svg(String);

impl Svg {
    pub(super) fn new() -> Self {
        Self(String::new())
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.0.write_fmt(element);
        self.0.push('\n');
    }

    pub(super) fn bar(&mut self, (x, y): (f64, f64), width: f64, height: f64, fill: &str) {
        self.add(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#
        ));
    }

    pub(super) fn grid(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.add(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{GRID}"/>"#
        ));
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, fill: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{fill}">{text}</text>"#
        ));
    }

    pub(super) fn label(&mut self, at: (f64, f64), anchor: Anchor, text: &str) {
        self.text(at, anchor, INK, text);
    }

    pub(super) fn line(&mut self, series: usize, points: &[(f64, f64)]) {
        let points: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        self.add(format_args!(
            r#"<polyline points="{}" fill="none" stroke="{}" stroke-width="2" stroke-dasharray="{}"/>"#,
            points.join(" "),
            colour(series),
            dash(series)
        ));
    }

    /// Swatches and names from `y` down, as many to a line as fit. The height they take.
    pub(super) fn legend(&mut self, y: f64, names: &[&str]) -> f64 {
        const SWATCH: f64 = 12.0;
        const LINE: f64 = 20.0;
        let (mut x, mut row) = (MARGIN, y);
        for (series, name) in names.iter().enumerate() {
            let width = SWATCH + 6.0 + width_of(name) + 18.0;
            if x > MARGIN && x + width > WIDTH {
                (x, row) = (MARGIN, row + LINE);
            }
            let middle = row + SWATCH / 2.0;
            if dash(series).is_empty() {
                self.bar((x, row), SWATCH, SWATCH, colour(series));
            } else {
                self.line(series, &[(x, middle), (x + SWATCH, middle)]);
            }
            self.label((x + SWATCH + 6.0, row + 10.5), Anchor::Start, name);
            x += width;
        }
        if names.is_empty() {
            0.0
        } else {
            row + LINE - y
        }
    }

    pub(super) fn finish(self, title: &str, height: f64) -> String {
        let (title, body) = (escaped(title), self.0);
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:.0}" height="{height:.0}" viewBox="0 0 {WIDTH:.0} {height:.0}" role="img" font-family="system-ui, sans-serif" font-size="{FONT_SIZE}">
<title>{title}</title>
<rect width="{WIDTH:.0}" height="{height:.0}" fill="white"/>
<text x="{MARGIN}" y="24" fill="{INK}" font-size="{TITLE_SIZE}" font-weight="600">{title}</text>
{body}</svg>
"#
        )
    }
}

/// Around everything.
pub(super) const MARGIN: f64 = 16.0;
/// Below the title.
pub(super) const TOP: f64 = 40.0;

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // Titles are Markdown elsewhere.
            '`' => {}
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}
