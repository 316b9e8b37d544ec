//! Writes the last results into the README, so that no number is copied by hand.
//!
//! A result is between `<!-- result: SCENARIO -->` and `<!-- end -->`. Only results of scenarios that ran are replaced, so a
//! run of one scenario does not change the others. The table of budgets is between `<!-- budgets -->` and `<!-- end -->`.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, ensure};

use super::{Report, budget, markdown};
use crate::options::Options;

const README: &str = "README.md";
const CHARTS: &str = "charts";
const BUDGETS: &str = "<!-- budgets -->";
const END: &str = "<!-- end -->";

/// Writes the report of the last run into the README of a folder, with its charts.
pub(crate) fn publish(options: &Options, folder: &Path) -> anyhow::Result<()> {
    let report = Report::read(&options.out()?)?;
    ensure!(
        !report.quick,
        "the last run was --quick, which does not say what anything costs"
    );
    ensure!(
        report.is_whole(),
        "something failed in the last run, or it was cut short"
    );
    let readme = folder.join(README);
    let context = || readme.display().to_string();
    let text = fs::read_to_string(&readme).with_context(context)?;
    let text = with_budgets(with_results(text, &report)?)?;
    let charts = folder.join(CHARTS);
    fs::create_dir_all(&charts).context("the folder of charts")?;
    report.write_charts(&charts)?;
    fs::write(&readme, text).with_context(context)
}

fn with_results(mut readme: String, report: &Report) -> anyhow::Result<String> {
    for answered in &report.sections {
        let place = place(&readme, &format!("<!-- result: {} -->", answered.name))?;
        let folder = format!("{CHARTS}/");
        let result = format!(
            "\n**Question.** {}\n\n**Last result.** {}\n\n{}\n",
            answered.question,
            markdown::machine(report),
            markdown::section(report, answered, Some(&folder))
        );
        readme.replace_range(place, &result);
    }
    Ok(readme)
}

fn with_budgets(mut readme: String) -> anyhow::Result<String> {
    let place = place(&readme, BUDGETS)?;
    let table = format!("\n{}", markdown::table(&budget::table()));
    readme.replace_range(place, &table);
    Ok(readme)
}

/// The range between a marker line and the next end marker.
fn place(readme: &str, begin: &str) -> anyhow::Result<Range<usize>> {
    let at = readme
        .find(begin)
        .with_context(|| format!("{README} has no line {begin}"))?
        + begin.len();
    let no_end = || format!("{README} has no {END} after {begin}");
    let length = readme[at..].find(END).with_context(no_end)?;
    let place = at..at + length;
    ensure!(!readme[place.clone()].contains("<!-- "), no_end());
    Ok(place)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answered, report};
    use super::*;
    use crate::report::{Section, Table};

    const README_TEXT: &str = include_str!("../../README.md");
    const PLACES: &str = "# A\n<!-- result: refuse -->\noutdated\n<!-- end -->\nB\n<!-- result: reload -->\nkept\n<!-- end -->\nC\n";

    fn refuse() -> Report {
        let mut table = Table::new(["who"]);
        table.row(["new".to_owned()]);
        let section = Section {
            tables: vec![table],
            ..Section::default()
        };
        report(vec![answered("refuse", section)])
    }

    #[test]
    fn only_the_results_of_scenarios_that_ran_are_replaced() {
        let readme = with_results(PLACES.to_owned(), &refuse()).unwrap();
        assert!(
            readme.contains("| new |") && !readme.contains("outdated"),
            "{readme}"
        );
        assert!(readme.contains("\nkept\n") && readme.ends_with("C\n"));
        assert!(readme.starts_with("# A\n<!-- result: refuse -->\n"));
        // Publishing again changes nothing.
        assert_eq!(with_results(readme.clone(), &refuse()).unwrap(), readme);
    }

    #[test]
    fn a_readme_without_the_place_is_an_error() {
        for readme in [
            "# A",
            "<!-- result: refuse -->",
            "<!-- result: refuse -->\n<!-- result: reload -->\n<!-- end -->",
        ] {
            assert!(
                with_results(readme.to_owned(), &refuse()).is_err(),
                "{readme}"
            );
        }
    }

    #[test]
    fn the_readme_shows_the_budgets_the_code_judges_by() {
        let readme = README_TEXT.to_owned();
        let shown = with_budgets(readme.clone()).unwrap();
        let table = &shown[place(&shown, BUDGETS).unwrap()];
        assert!(shown == readme, "{README} must have this table:\n{table}");
    }

    #[test]
    fn the_readme_has_a_place_for_every_scenario() {
        let readme = README_TEXT.to_owned();
        let all = crate::scenario::PLAN.scenarios.iter();
        let all = all.map(|scenario| answered(&scenario.name, Section::default()));
        let published = with_results(readme, &report(all.collect())).unwrap();
        assert!(published.contains("took "));
    }
}
