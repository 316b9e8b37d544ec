//! Charts of a scenario, drawn as SVG by `plotters`: no fonts or system libraries are needed, and equal numbers give equal
//! bytes. The background is white, so that charts can be read on a dark page, too.

mod axis;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::{Deserialize, Serialize};

use axis::{Axis, number};

/// Points (percentile or second, value), or (index of a group, value).
pub(crate) type Points = Vec<(f64, f64)>;

/// A chart, with its data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Chart {
    /// File name without the suffix: `tools_call` is written to `tools_call.svg`. It begins with the name of the
    /// scenario.
    pub(crate) file: String,
    pub(crate) title: String,
    /// Unit of the values.
    pub(crate) unit: String,
    pub(crate) across: Across,
    /// Names for the legend, each with its points.
    pub(crate) series: Vec<(String, Points)>,
}

/// The kind of chart, by its axis across the values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Across {
    /// Horizontal bars: a group per name, and in it a bar per series.
    Groups { names: Vec<String>, log: bool },
    /// Latency by percentile.
    Percentiles,
    /// Values over the seconds of a run.
    Seconds,
}

/// Maximum number of points in a line.
const POINTS_MAX: usize = 400;
const WIDTH: i32 = 820;
/// Height of the field in which lines are drawn, with its axes, in pixels.
const HEIGHT: i32 = 350;
const BAR: i32 = 17;
const BETWEEN_GROUPS: i32 = 9;
const MARGIN: i32 = 16;
/// Height of a line of text, in pixels.
const LINE: i32 = 20;
/// Width of an average letter in pixels, rounded up: the viewer chooses the font.
const LETTER: f64 = 7.1;
/// Space at the end of the longest bar for its value, in pixels.
const VALUE: i32 = 90;
/// Maximum length of a label in characters; longer labels are cut.
const LABEL_MAX: usize = 44;
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GREY: RGBColor = RGBColor(0x66, 0x66, 0x66);
const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Colours that most people can distinguish on white.
struct Colours;

#[rustfmt::skip]
impl Palette for Colours {
    const COLORS: &'static [(u8, u8, u8)] = &[
        (0, 114, 178), (213, 94, 0), (0, 158, 115), (230, 159, 0), (204, 121, 167),
        (86, 180, 233), (85, 85, 85), (128, 80, 50), (110, 70, 190), (150, 170, 40),
    ];
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

impl Chart {
    /// Creates a chart. Points that are not finite are omitted, since SVG and JSON cannot represent them; of a longer line
    /// some [`POINTS_MAX`] points are shown.
    pub(crate) fn new(
        file: &str,
        title: &str,
        unit: &str,
        across: Across,
        mut series: Vec<(String, Points)>,
    ) -> Self {
        for (_, points) in &mut series {
            points.retain(|(at, value)| at.is_finite() && value.is_finite());
            let step = points.len().div_ceil(POINTS_MAX).max(1);
            *points = std::mem::take(points).into_iter().step_by(step).collect();
        }
        Self {
            file: file.to_owned(),
            title: title.to_owned(),
            unit: unit.to_owned(),
            across,
            series,
        }
    }

    /// Draws the chart as SVG.
    pub(crate) fn svg(&self) -> anyhow::Result<String> {
        let legend = match (&self.across, &self.series[..]) {
            // The title of the chart describes a single series of bars.
            (Across::Groups { .. }, [_]) => Vec::new(),
            (_, series) => legend(series),
        };
        let top = legend.last().map_or(2 * LINE, |(_, (_, y))| y + LINE + 6);
        let field = match &self.across {
            Across::Groups { names, .. } => names.len() as i32 * self.group() + 2 * LINE,
            Across::Percentiles | Across::Seconds => HEIGHT,
        };
        let mut svg = String::new();
        let size = (WIDTH as u32, (top + field) as u32);
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE)?;
        // Titles contain Markdown.
        let title = self.title.replace('`', "");
        root.draw(&Text::new(title, (MARGIN, 10), ("sans-serif", 18.6)))?;
        for (series, (name, (x, y))) in legend.into_iter().enumerate() {
            let swatch = [(x, y), (x + 12, y + 12)];
            root.draw(&Rectangle::new(swatch, Colours::pick(series).filled()))?;
            root.draw(&Text::new(name, (x + 18, y), text(&INK)))?;
        }
        let (_, field) = root.split_vertically(top);
        match &self.across {
            Across::Groups { names, log } => self.draw_bars(&field, names, *log)?,
            Across::Percentiles => self.draw_lines(
                &field,
                Axis::percentiles(self.last()),
                "percentile of requests",
                true,
            )?,
            Across::Seconds => {
                self.draw_lines(&field, Axis::linear([self.last()]), "seconds", false)?
            }
        }
        drop((field, root));
        Ok(svg)
    }

    fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        self.series.iter().flat_map(|(_, points)| points)
    }

    /// The largest percentile or second of all points.
    fn last(&self) -> f64 {
        self.points().map(|(at, _)| *at).fold(0.0, f64::max)
    }

    /// The axis of the values, and its title.
    fn axis(&self, log: bool) -> (Axis, String) {
        let values = self.points().map(|(_, value)| *value);
        match log {
            true => (Axis::log(values), format!("{} (logarithmic)", self.unit)),
            false => (Axis::linear(values), self.unit.clone()),
        }
    }

    /// The height of a group of bars, in pixels.
    fn group(&self) -> i32 {
        self.series.len().max(1) as i32 * BAR + BETWEEN_GROUPS
    }

    fn draw_bars(&self, field: &Area<'_>, names: &[String], log: bool) -> anyhow::Result<()> {
        let (axis, unit) = self.axis(log);
        let (start, names) = (axis.start, names.iter().map(|name| shortened(name)));
        let names: Vec<String> = names.collect();
        let longest = names.iter().map(|name| width_of(name)).max();
        let mut chart = ChartBuilder::on(field)
            .margin_right(VALUE)
            .y_label_area_size(MARGIN + longest.unwrap_or_default() + 8)
            .x_label_area_size(2 * LINE)
            .build_cartesian_2d(axis, Axis::groups(&names))?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_y_mesh().bold_line_style(GRID).axis_style(GRID);
        mesh.x_label_style(text(&GREY)).y_label_style(text(&INK));
        mesh.axis_desc_style(text(&GREY)).x_desc(unit).draw()?;
        let part = |pixels: i32| f64::from(pixels) / f64::from(self.group());
        let middle = text(&GREY).pos(Pos::new(HPos::Left, VPos::Center));
        for (series, (_, points)) in self.series.iter().enumerate() {
            for group in 0..names.len() {
                let value = points.iter().find(|(at, _)| *at == group as f64);
                let value = value.map(|(_, value)| *value);
                let (end, shown) = value.map_or((start, "not measured".to_owned()), |value| {
                    (value, number(value))
                });
                let top = group as f64 + part(BETWEEN_GROUPS / 2 + BAR * series as i32);
                let bar = [(start, top), (end, top + part(BAR - 2))];
                chart.draw_series([Rectangle::new(bar, Colours::pick(series).filled())])?;
                let beside = EmptyElement::at((end, top + part(BAR / 2)));
                chart.draw_series([beside + Text::new(shown, (5, 0), middle.clone())])?;
            }
        }
        Ok(())
    }

    fn draw_lines(
        &self,
        field: &Area<'_>,
        across: Axis,
        called: &str,
        log: bool,
    ) -> anyhow::Result<()> {
        let (axis, unit) = self.axis(log);
        field.draw(&Text::new(unit, (MARGIN, 0), text(&GREY)))?;
        let mut chart = ChartBuilder::on(field)
            .margin_top(LINE + 4)
            .margin_right(2 * LINE)
            .y_label_area_size(76)
            .x_label_area_size(2 * LINE)
            .build_cartesian_2d(across, axis)?;
        let mut mesh = chart.configure_mesh();
        mesh.bold_line_style(GRID)
            .axis_style(GRID)
            .label_style(text(&GREY));
        mesh.axis_desc_style(text(&GREY)).x_desc(called).draw()?;
        for (series, (_, points)) in self.series.iter().enumerate() {
            let style = Colours::pick(series).stroke_width(2);
            chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        }
        Ok(())
    }
}

fn text(colour: &RGBColor) -> TextStyle<'_> {
    TextStyle::from(("sans-serif", 15).into_font()).color(colour)
}

fn width_of(text: &str) -> i32 {
    (text.chars().count() as f64 * LETTER) as i32
}

fn shortened(label: &str) -> String {
    if label.chars().count() <= LABEL_MAX {
        return label.to_owned();
    }
    label.chars().take(LABEL_MAX - 1).chain(['…']).collect()
}

/// Places the names of the legend, as many as fit on a line; returns each with its position.
fn legend(series: &[(String, Points)]) -> Vec<(String, (i32, i32))> {
    let (mut x, mut y) = (MARGIN, 2 * LINE);
    let names = series.iter().map(|(name, _)| {
        let width = 36 + width_of(name);
        if x > MARGIN && x + width > WIDTH {
            (x, y) = (MARGIN, y + LINE);
        }
        x += width;
        (name.clone(), (x - width, y))
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::*;

    /// All coordinates lie within the picture, and this is its text.
    fn texts(chart: &Chart) -> Vec<String> {
        let svg = chart.svg().unwrap();
        let document = Document::parse(&svg).unwrap();
        let root = document.root_element();
        let number = |text: &str| -> f64 { text.parse().unwrap() };
        let size = |name: &str| number(root.attribute(name).unwrap());
        for node in root.descendants() {
            for (names, most) in [
                (["x", "x1", "x2"], size("width")),
                (["y", "y1", "y2"], size("height")),
            ] {
                for value in names.iter().filter_map(|name| node.attribute(*name)) {
                    assert!((0.0..=most).contains(&number(value)), "{node:?} of {svg}");
                }
            }
            let points = node.attribute("points").unwrap_or_default().split(' ');
            for (x, y) in points.filter_map(|point| point.split_once(',')) {
                assert!(
                    number(x) <= size("width") && number(y) <= size("height"),
                    "{svg}"
                );
            }
        }
        let texts = root.descendants().filter(|node| node.has_tag_name("text"));
        texts
            .map(|node| node.text().unwrap_or_default().trim().to_owned())
            .collect()
    }

    fn assert_has(chart: &Chart, expected: &[&str]) {
        let texts = texts(chart);
        for expected in expected {
            assert!(
                texts.iter().any(|text| text == expected),
                "{expected}: {texts:?}"
            );
        }
    }

    fn chart(across: Across, series: Vec<(&str, Points)>) -> Chart {
        let series = series
            .into_iter()
            .map(|(name, points)| (name.to_owned(), points));
        Chart::new("x", "a < b & \"c\" `d`", "us", across, series.collect())
    }

    fn groups(names: &[&str], log: bool) -> Across {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Across::Groups { names, log }
    }

    #[test]
    fn bars_have_labels_values_unit_and_legend() {
        let small = vec![(0.0, 69.4), (1.0, 4851.8), (2.0, 0.0)];
        let large = vec![(0.0, 900.0), (2.0, 1.0)];
        for (log, unit) in [(false, "us"), (true, "us (logarithmic)")] {
            let all = groups(&["tooldock", "a peer & <another>", "nothing"], log);
            let chart = chart(all, vec![("16 KB", small.clone()), ("1 MB", large.clone())]);
            let names = [
                "tooldock",
                "a peer & <another>",
                "a < b & \"c\" d",
                "16 KB",
                "1 MB",
                unit,
            ];
            assert_has(&chart, &names);
            assert_has(&chart, &["69.4", "4,852", "not measured"]);
        }
        let one = chart(groups(&["tooldock"], false), vec![("only", small)]);
        assert!(!texts(&one).contains(&"only".to_owned()), "needs no legend");
    }

    #[test]
    fn lines_have_their_axes_and_legend() {
        let points = vec![(50.0, 100.0), (90.0, 200.0), (99.0, 900.0), (99.9, 5000.0)];
        let mut lines = vec![("alone", points.clone()), ("beside an attack", points)];
        lines.push(("not measured", Vec::new()));
        let percentiles = chart(Across::Percentiles, lines);
        assert_has(&percentiles, &["alone", "beside an attack", "not measured"]);
        assert_has(
            &percentiles,
            &["50 %", "99 %", "99.9 %", "us (logarithmic)", "1,000"],
        );
        let svg = percentiles.svg().unwrap();
        assert_eq!(svg.matches("stroke-width=\"2\"").count(), 2, "{svg}");

        let points = (0..1200).map(|at| (f64::from(at), 30.0)).collect();
        let mut timeline = chart(Across::Seconds, vec![("memory", points)]);
        timeline.unit = "MiB".to_owned();
        assert_eq!(timeline.series[0].1.len(), 400);
        assert_has(&timeline, &["MiB", "seconds", "0", "1,000"]);
    }

    #[test]
    fn what_is_no_number_is_left_out() {
        let points = vec![(0.0, f64::NAN), (1.0, 5.0), (f64::INFINITY, 1.0)];
        let chart = chart(Across::Seconds, vec![("x", points)]);
        assert_eq!(chart.series[0].1, [(1.0, 5.0)]);
    }

    #[test]
    fn charts_without_anything_to_show_are_pictures_all_the_same() {
        for points in [Vec::new(), vec![(1.0, -5.0)]] {
            for across in [Across::Percentiles, Across::Seconds] {
                assert!(!texts(&chart(across, vec![("x", points.clone())])).is_empty());
            }
        }
        assert!(!texts(&chart(groups(&[], true), Vec::new())).is_empty());
    }

    #[test]
    fn long_labels_are_cut() {
        assert_eq!(shortened("short"), "short");
        let cut = shortened(&"é".repeat(100));
        assert_eq!((cut.chars().count(), cut.ends_with('…')), (LABEL_MAX, true));
    }
}
