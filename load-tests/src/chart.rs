//! Charts a scenario asks for, drawn as SVG by hand: no fonts or system libraries are needed, and the same numbers give the
//! same bytes.
//!
//! The background is light and opaque, so that they can be read on a dark page, too.

mod bars;
mod lines;
mod scale;
mod svg;

use serde::{Deserialize, Serialize};

/// One picture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Chart {
    /// Without the suffix: `tools_call` is written to `tools_call.svg`. A scenario's begin with its name.
    pub(crate) file: String,
    pub(crate) title: String,
    pub(crate) kind: ChartKind,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ChartKind {
    /// Horizontal bars: a group for each label, in it a bar for each series. `log` where values differ a hundred times.
    Bars {
        unit: String,
        log: bool,
        series: Vec<String>,
        groups: Vec<(String, Vec<Option<f64>>)>,
    },
    /// Latency by percentile: (percentile, microseconds), as `curve` of a sample has it.
    Percentiles {
        unit: String,
        series: Vec<(String, Vec<(f64, f64)>)>,
    },
    /// Something over the seconds of a run: (seconds, value).
    Timeline {
        unit: String,
        series: Vec<(String, Vec<(f64, f64)>)>,
    },
}

impl Chart {
    /// Without points that are no numbers, which neither a picture nor JSON can hold.
    pub(crate) fn finite(mut self) -> Self {
        match &mut self.kind {
            ChartKind::Bars { groups, .. } => {
                for value in groups.iter_mut().flat_map(|(_, values)| values) {
                    *value = value.filter(|value| value.is_finite());
                }
            }
            ChartKind::Percentiles { series, .. } | ChartKind::Timeline { series, .. } => {
                for (_, points) in series {
                    points.retain(|(at, value)| at.is_finite() && value.is_finite());
                }
            }
        }
        self
    }

    pub(crate) fn svg(&self) -> String {
        match &self.kind {
            ChartKind::Bars {
                unit,
                log,
                series,
                groups,
            } => bars::draw(&self.title, unit, *log, series, groups),
            ChartKind::Percentiles { unit, series } => {
                lines::percentiles(&self.title, unit, series)
            }
            ChartKind::Timeline { unit, series } => lines::timeline(&self.title, unit, series),
        }
    }
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::*;

    fn chart(kind: ChartKind) -> Chart {
        Chart {
            file: "x".to_owned(),
            title: "a < b & \"c\"".to_owned(),
            kind,
        }
    }

    /// All coordinates lie within the picture, and this is its text.
    fn texts(svg: &str) -> Vec<String> {
        let document = Document::parse(svg).unwrap();
        let root = document.root_element();
        let size = |name: &str| -> f64 { root.attribute(name).unwrap().parse().unwrap() };
        let (width, height) = (size("width"), size("height"));
        for node in root.descendants() {
            for (names, most) in [(["x", "x1", "x2"], width), (["y", "y1", "y2"], height)] {
                for value in names.iter().filter_map(|name| node.attribute(*name)) {
                    let value: f64 = value.parse().unwrap();
                    assert!((0.0..=most).contains(&value), "{node:?} of {svg}");
                }
            }
            for point in node.attribute("points").unwrap_or_default().split(' ') {
                let Some((x, y)) = point.split_once(',') else {
                    continue;
                };
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!((0.0..=width).contains(&x) && (0.0..=height).contains(&y));
            }
        }
        let texts = root.descendants().filter(|node| node.has_tag_name("text"));
        texts
            .map(|node| node.text().unwrap_or_default().to_owned())
            .collect()
    }

    fn has(texts: &[String], text: &str) -> bool {
        let logarithmic = format!("{text} (logarithmic)");
        texts
            .iter()
            .any(|shown| *shown == text || *shown == logarithmic)
    }

    #[test]
    fn bars_have_labels_values_unit_and_legend() {
        for log in [false, true] {
            let svg = chart(ChartKind::Bars {
                unit: "us of CPU a call".to_owned(),
                log,
                series: vec!["small".to_owned(), "1 MB".to_owned()],
                groups: vec![
                    ("tooldock".to_owned(), vec![Some(69.4), Some(900.0)]),
                    ("a peer & <another>".to_owned(), vec![Some(4851.8), None]),
                    ("nothing".to_owned(), vec![Some(0.0), Some(1.0)]),
                ],
            })
            .svg();
            let texts = texts(&svg);
            for expected in [
                "a < b & \"c\"",
                "us of CPU a call",
                "small",
                "1 MB",
                "tooldock",
                "a peer & <another>",
                "69.4",
                "4,852",
                "not measured",
            ] {
                assert!(has(&texts, expected), "{expected}: {texts:?}");
            }
            assert!(svg.contains(r#"fill="white""#), "a background of its own");
        }
    }

    #[test]
    fn one_series_of_bars_needs_no_legend() {
        let svg = chart(ChartKind::Bars {
            unit: "KiB".to_owned(),
            log: false,
            series: vec!["only".to_owned()],
            groups: vec![("a".to_owned(), vec![Some(1.0)])],
        })
        .svg();
        assert!(!has(&texts(&svg), "only"));
    }

    #[test]
    fn percentiles_have_their_axis_and_a_line_for_each_series() {
        let curve = |times: f64| {
            let points = [(50.0, 100.0), (90.0, 200.0), (99.0, 900.0), (99.9, 5000.0)];
            points.map(|(at, value)| (at, value * times)).to_vec()
        };
        let svg = chart(ChartKind::Percentiles {
            unit: "us".to_owned(),
            series: vec![
                ("alone".to_owned(), curve(1.0)),
                ("beside an attack".to_owned(), curve(3.0)),
                ("not measured".to_owned(), Vec::new()),
            ],
        })
        .svg();
        let texts = texts(&svg);
        for expected in ["alone", "beside an attack", "50 %", "99 %", "99.9 %", "us"] {
            assert!(has(&texts, expected), "{expected}: {texts:?}");
        }
        let document = Document::parse(&svg).unwrap();
        let lines = document
            .descendants()
            .filter(|node| node.has_tag_name("polyline"));
        assert_eq!(lines.count(), 2);
    }

    #[test]
    fn a_timeline_begins_at_zero_and_names_its_axes() {
        let svg = chart(ChartKind::Timeline {
            unit: "MiB".to_owned(),
            series: vec![(
                "memory".to_owned(),
                (0..1200).map(|at| (f64::from(at), 30.0)).collect(),
            )],
        })
        .svg();
        let texts = texts(&svg);
        for expected in ["MiB", "seconds", "0"] {
            assert!(has(&texts, expected), "{expected}: {texts:?}");
        }
    }

    #[test]
    fn what_is_no_number_is_left_out() {
        let timeline = chart(ChartKind::Timeline {
            unit: "us".to_owned(),
            series: vec![("x".to_owned(), vec![(0.0, f64::NAN), (1.0, 5.0)])],
        });
        let ChartKind::Timeline { series, .. } = timeline.finite().kind else {
            panic!("another kind")
        };
        assert_eq!(series[0].1, [(1.0, 5.0)]);
        let bars = chart(ChartKind::Bars {
            unit: "us".to_owned(),
            log: false,
            series: vec!["x".to_owned()],
            groups: vec![("a".to_owned(), vec![Some(f64::INFINITY), Some(1.0)])],
        });
        let ChartKind::Bars { groups, .. } = bars.finite().kind else {
            panic!("another kind")
        };
        assert_eq!(groups[0].1, [None, Some(1.0)]);
    }

    #[test]
    fn charts_without_anything_to_show_are_pictures_all_the_same() {
        for kind in [
            ChartKind::Bars {
                unit: "us".to_owned(),
                log: true,
                series: Vec::new(),
                groups: Vec::new(),
            },
            ChartKind::Percentiles {
                unit: "us".to_owned(),
                series: Vec::new(),
            },
            ChartKind::Timeline {
                unit: "us".to_owned(),
                series: vec![("x".to_owned(), vec![(0.0, f64::NAN), (1.0, -5.0)])],
            },
        ] {
            assert!(!texts(&chart(kind).svg()).is_empty());
        }
    }
}
