//! What came of a run: critest's own report in JSON, and the list in the repository.

use std::{collections::BTreeMap, fmt};

use anyhow::{Context, Result};
use serde::Deserialize;

/// The specs that were chosen, by their full names.
#[derive(Debug)]
pub(crate) struct Report {
    specs: BTreeMap<String, Outcome>,
    /// Failed, and passed when run again.
    unreliable: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// By critest itself, with its reason.
    Skipped(String),
    Failed(String),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SuiteReport {
    spec_reports: Option<Vec<SpecReport>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SpecReport {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    failure: Option<Failure>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

impl Report {
    pub(crate) fn parse(json: &str) -> Result<Self> {
        let suites: Vec<SuiteReport> = serde_json::from_str(json).context("parse the report")?;
        let specs = suites.into_iter().flat_map(|suite| suite.spec_reports.unwrap_or_default());
        let specs = specs.filter_map(SpecReport::outcome).collect();
        Ok(Self { specs, unreliable: Vec::new() })
    }

    /// A pattern of ginkgo's for the specs that failed, if they are no more than `few`.
    pub(crate) fn failed(&self, few: usize) -> Option<String> {
        let failed = self.specs.iter().filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)));
        let names: Vec<_> = failed.map(|(name, _)| regex::escape(name)).collect();
        (1..=few).contains(&names.len()).then(|| format!("^({})$", names.join("|")))
    }

    /// Takes in a second run of what failed.
    pub(crate) fn mend(&mut self, second: &Self) {
        for (name, outcome) in &mut self.specs {
            let failed = matches!(outcome, Outcome::Failed(_));
            if failed && second.specs.get(name) == Some(&Outcome::Passed) {
                *outcome = Outcome::Passed;
                self.unreliable.push(name.clone());
            }
        }
    }

    /// One line per spec that passed or was skipped, as the repository keeps them.
    pub(crate) fn to_list(&self) -> String {
        let line = |(name, outcome): (&String, &Outcome)| match outcome {
            Outcome::Passed => Some(format!("passed   {name}\n")),
            Outcome::Skipped(why) => Some(format!("skipped  {name}: {why}\n")),
            Outcome::Failed(_) => None,
        };
        self.specs.iter().filter_map(line).collect()
    }

    /// What `list` says passed and did not pass now. In a run of a part, only of that part.
    pub(crate) fn lost(&self, list: &str, part: bool) -> Vec<String> {
        let passed_before = list.lines().filter_map(|line| line.strip_prefix("passed   "));
        let is_lost = |name: &&str| match self.specs.get(*name) {
            Some(outcome) => *outcome != Outcome::Passed,
            None => !part,
        };
        passed_before.filter(is_lost).map(str::to_owned).collect()
    }

    /// Something failed, or nothing ran.
    pub(crate) fn is_red(&self) -> bool {
        self.count(|outcome| *outcome == Outcome::Passed) == 0
            || self.count(|outcome| matches!(outcome, Outcome::Failed(_))) > 0
    }

    fn count(&self, is: impl Fn(&Outcome) -> bool) -> usize {
        self.specs.values().filter(|outcome| is(outcome)).count()
    }
}

impl SpecReport {
    fn outcome(self) -> Option<(String, Outcome)> {
        let why = self.failure.unwrap_or_default().message;
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        let outcome = match &*self.state {
            "passed" => Outcome::Passed,
            // Not chosen by the focus: critest gives no reason.
            "skipped" if why.is_empty() => return None,
            "skipped" => Outcome::Skipped(why),
            "pending" => return None,
            state => Outcome::Failed(format!("{state}: {why}")),
        };
        // Around the specs are set-up and clean-up, which count only when they fail.
        if self.leaf_node_type != "It" && !matches!(outcome, Outcome::Failed(_)) {
            return None;
        }
        let mut words = self.container_hierarchy_texts.unwrap_or_default();
        words.push(self.leaf_node_text);
        Some((words.join(" "), outcome))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.specs {
            match outcome {
                Outcome::Passed => {}
                Outcome::Skipped(why) => writeln!(f, "skipped  {name}: {why}")?,
                Outcome::Failed(why) => writeln!(f, "FAILED   {name}: {why}")?,
            }
        }
        for name in &self.unreliable {
            writeln!(f, "UNRELIABLE: {name}: passed when run again")?;
        }
        writeln!(
            f,
            "critest: {} passed, {} failed, {} skipped",
            self.count(|outcome| *outcome == Outcome::Passed),
            self.count(|outcome| matches!(outcome, Outcome::Failed(_))),
            self.count(|outcome| matches!(outcome, Outcome::Skipped(_))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"[{"SpecReports": [
        {"ContainerHierarchyTexts": null, "LeafNodeType": "BeforeSuite", "LeafNodeText": "", "State": "passed"},
        {"ContainerHierarchyTexts": ["[k8s.io] Pod", "basic"], "LeafNodeType": "It", "LeafNodeText": "runs", "State": "passed"},
        {"ContainerHierarchyTexts": ["[k8s.io] Pod"], "LeafNodeType": "It", "LeafNodeText": "stops", "State": "failed",
         "Failure": {"Message": "expected\n  ready"}},
        {"ContainerHierarchyTexts": ["A"], "LeafNodeType": "It", "LeafNodeText": "b", "State": "skipped",
         "Failure": {"Message": "no AppArmor"}},
        {"ContainerHierarchyTexts": ["A"], "LeafNodeType": "It", "LeafNodeText": "c", "State": "skipped"}
    ]}]"#;

    #[test]
    fn a_report_is_counted_and_listed() {
        let report = Report::parse(JSON).unwrap();
        let text = report.to_string();
        assert!(text.ends_with("critest: 1 passed, 1 failed, 1 skipped\n"), "{text}");
        assert!(text.contains("FAILED   [k8s.io] Pod stops: failed: expected ready"), "{text}");
        assert_eq!(
            report.to_list(),
            "skipped  A b: no AppArmor\npassed   [k8s.io] Pod basic runs\n"
        );
    }

    #[test]
    fn what_fails_is_run_again_by_a_pattern_and_mended_by_passing() {
        let mut report = Report::parse(JSON).unwrap();
        assert_eq!(report.failed(0), None);
        assert_eq!(report.failed(3).as_deref(), Some(r"^(\[k8s\.io\] Pod stops)$"));
        report.mend(&Report::parse(JSON).unwrap());
        assert!(report.is_red(), "it failed again");
        report.mend(&Report::parse(&JSON.replace(r#""failed""#, r#""passed""#)).unwrap());
        let text = report.to_string();
        assert!(text.contains("UNRELIABLE: [k8s.io] Pod stops: passed when run again"), "{text}");
        assert!(text.ends_with("critest: 2 passed, 0 failed, 1 skipped\n"), "{text}");
        assert_eq!(report.failed(3), None);
    }

    #[test]
    fn what_passed_once_must_pass() {
        let report = Report::parse(JSON).unwrap();
        assert!(report.lost(&report.to_list(), false).is_empty());
        let list = "passed   [k8s.io] Pod stops\npassed   gone\n";
        assert_eq!(report.lost(list, false), ["[k8s.io] Pod stops", "gone"]);
        assert_eq!(report.lost(list, true), ["[k8s.io] Pod stops"]);
    }
}
