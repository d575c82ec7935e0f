//! Work in named steps, each with its undo.
//!
//! Before a step acts its intent is on record; so whoever finds the record, this daemon
//! after a failure or the next one after a crash, knows the last step that may have
//! happened and undoes from there. Undo works from the record alone, and undoing what
//! never happened succeeds.

use std::time::Duration;

use base::Id;

use crate::{
    crash::{self, Moment},
    error::{EngineError, Result},
    stages::Stages,
};

/// How long the undo of one step may take before it is left to be retried.
const UNDO_LIMIT: Duration = Duration::from_secs(60);

/// A list of steps over something that carries their results.
pub(crate) trait Plan: Send {
    type Step: Copy + PartialEq + Send + Sync + 'static;

    const OPERATION: &'static str;
    const STEPS: &'static [Self::Step];

    fn name(step: Self::Step) -> &'static str;
    fn id(&self) -> Id;
    fn stages(&self) -> &Stages;

    /// Puts on record that `step` begins.
    fn intend(&mut self, step: Self::Step) -> impl Future<Output = Result<()>> + Send;
    fn act(&mut self, step: Self::Step) -> impl Future<Output = Result<()>> + Send;
    /// Puts on record that all steps were taken.
    fn complete(&mut self) -> impl Future<Output = Result<()>> + Send;
    /// Idempotent; also of a step that was only intended.
    fn undo(&mut self, step: Self::Step) -> impl Future<Output = Result<()>> + Send;
}

/// What is left of a plan that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: EngineError,
    /// Undo steps that failed too: leftovers to be tried again.
    pub(crate) leftovers: Vec<EngineError>,
}

/// Takes all steps and puts that on record, or undoes those it took. Not cancel safe: run it
/// in a task.
pub(crate) async fn run<P: Plan>(plan: &mut P) -> Result<(), Box<Failure>> {
    let stage = plan.stages().enter(plan.id(), P::OPERATION);
    for (at, &step) in P::STEPS.iter().enumerate() {
        let taken = match plan.intend(step).await {
            Ok(()) => {
                stage.at(P::name(step));
                let acted = plan.act(step).await;
                crash::point(P::OPERATION, P::name(step), Moment::Acted);
                acted
            }
            refused => refused,
        };
        if let Err(source) = taken {
            return Err(fail(plan, at, P::name(step), source).await);
        }
    }
    match plan.complete().await {
        Ok(()) => Ok(()),
        Err(source) => Err(fail(plan, P::STEPS.len() - 1, "record", source).await),
    }
}

/// Undoes what was begun, up to the step at `last`.
async fn fail<P: Plan>(
    plan: &mut P,
    last: usize,
    step: &'static str,
    source: EngineError,
) -> Box<Failure> {
    let (operation, id) = (P::OPERATION, plan.id());
    let error = EngineError::Step { operation, id, step, source: Box::new(source) };
    let leftovers = undo(plan, last).await;
    Box::new(Failure { error, leftovers })
}

/// Undoes the steps up to and including the one called `last`, newest first. An unknown
/// name, of an older version, undoes all.
pub(crate) async fn undo_from<P: Plan>(plan: &mut P, last: &str) -> Vec<EngineError> {
    let at = P::STEPS.iter().position(|&step| P::name(step) == last);
    undo(plan, at.unwrap_or(P::STEPS.len().saturating_sub(1))).await
}

async fn undo<P: Plan>(plan: &mut P, last: usize) -> Vec<EngineError> {
    let mut errors = Vec::new();
    for &step in P::STEPS[..=last].iter().rev() {
        let undone = tokio::time::timeout(UNDO_LIMIT, plan.undo(step)).await;
        let undone = undone.unwrap_or_else(|_| {
            let doing = format!("undo of step {:?}", P::name(step));
            Err(EngineError::Timeout { doing, limit: UNDO_LIMIT })
        });
        errors.extend(undone.err());
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Step {
        First,
        Second,
        Third,
    }

    struct Journal {
        stages: Stages,
        log: Vec<String>,
        fails_at: Option<Step>,
        undo_fails_at: Option<Step>,
        record_fails: bool,
    }

    impl Plan for Journal {
        type Step = Step;
        const OPERATION: &'static str = "test";
        const STEPS: &'static [Step] = &[Step::First, Step::Second, Step::Third];

        fn name(step: Step) -> &'static str {
            match step {
                Step::First => "first",
                Step::Second => "second",
                Step::Third => "third",
            }
        }
        fn id(&self) -> Id {
            "0".repeat(64).parse().unwrap()
        }
        fn stages(&self) -> &Stages {
            &self.stages
        }
        async fn intend(&mut self, step: Step) -> Result<()> {
            self.log.push(format!("intend {}", Self::name(step)));
            Ok(())
        }
        async fn act(&mut self, step: Step) -> Result<()> {
            self.log.push(format!("act {}", Self::name(step)));
            if self.fails_at == Some(step) { Err(EngineError::Closing) } else { Ok(()) }
        }
        async fn complete(&mut self) -> Result<()> {
            self.log.push("complete".to_owned());
            if self.record_fails { Err(EngineError::Closing) } else { Ok(()) }
        }
        async fn undo(&mut self, step: Step) -> Result<()> {
            self.log.push(format!("undo {}", Self::name(step)));
            if self.undo_fails_at == Some(step) { Err(EngineError::Closing) } else { Ok(()) }
        }
    }

    fn journal() -> Journal {
        Journal {
            stages: Stages::default(),
            log: Vec::new(),
            fails_at: None,
            undo_fails_at: None,
            record_fails: false,
        }
    }

    #[tokio::test]
    async fn a_failure_undoes_what_was_begun_newest_first() {
        let mut plan = Journal { fails_at: Some(Step::Second), ..journal() };
        let failure = run(&mut plan).await.unwrap_err();
        assert!(failure.leftovers.is_empty());
        assert!(failure.error.to_string().ends_with("at step \"second\""), "{}", failure.error);
        let undone: Vec<_> = plan.log.iter().filter(|line| line.starts_with("undo")).collect();
        assert_eq!(undone, ["undo second", "undo first"]);
    }

    #[tokio::test]
    async fn an_undo_that_fails_does_not_stop_the_others() {
        let mut plan =
            Journal { fails_at: Some(Step::Third), undo_fails_at: Some(Step::Second), ..journal() };
        let failure = run(&mut plan).await.unwrap_err();
        assert_eq!(failure.leftovers.len(), 1);
        assert_eq!(plan.log.last().unwrap(), "undo first");
    }

    #[tokio::test]
    async fn what_cannot_be_put_on_record_is_undone_whole() {
        let mut plan = Journal { record_fails: true, ..journal() };
        let failure = run(&mut plan).await.unwrap_err();
        assert!(failure.error.to_string().ends_with("at step \"record\""), "{}", failure.error);
        let after = plan.log.iter().skip_while(|line| *line != "complete").skip(1);
        assert_eq!(after.collect::<Vec<_>>(), ["undo third", "undo second", "undo first"]);
    }

    #[tokio::test]
    async fn after_a_crash_undo_begins_at_the_step_on_record() {
        let mut plan = journal();
        assert!(undo_from(&mut plan, "second").await.is_empty());
        assert_eq!(plan.log, ["undo second", "undo first"]);
        let mut plan = journal();
        undo_from(&mut plan, "a step of another version").await;
        assert_eq!(plan.log.len(), 3);
    }

    #[tokio::test]
    async fn every_intent_is_on_record_before_its_act() {
        let mut plan = journal();
        run(&mut plan).await.unwrap();
        assert_eq!(plan.log.chunks(2).filter(|pair| pair[0].starts_with("intend")).count(), 3);
        assert_eq!(plan.log.last().unwrap(), "complete");
        assert!(plan.stages.list().is_empty(), "nothing is in flight any more");
    }
}
