//! Tests that plans of runs that do not fit are complete, with only the refusal added.

use crate::common::setup;
use plan::{PlanOptions, PlanTarget, plan_precision, plan_run};

/// Settings with enough parameters to dominate a rank's memory.
const WIDE: [&str; 4] = ["model.width=1024", "model.heads=8", "model.layers=8", "precision.compute=bf16"];

#[test]
fn a_run_that_does_not_fit_is_planned_and_refused_in_words() {
    let options = |capacity| PlanOptions { target: PlanTarget::from_argument("h200").unwrap(), capacity };
    for sets in [
        &[][..],
        &["precision.matmul=fp8"],
        &["lora.rank=4"],
        &["precision.matmul=fp8", "memory.recompute=block"],
        &["parallel.data=2", "parallel.zero_stage=3"],
        &["parallel.pipeline=2"],
    ] {
        let config = (*setup(true, &[&WIDE[..], sets].concat()).config).clone();
        let fitting = plan_run(config.clone(), &options(None)).unwrap();
        let taken: u64 = fitting.fit.overhead.iter().map(|part| part.bytes).sum();
        let capacity = Some(taken + fitting.fit.needs / 2);
        let small = plan_run(config.clone(), &options(capacity)).unwrap();
        assert!(fitting.fit.fits && !small.fit.fits, "{sets:?}: {small}");
        assert!(small.to_string().contains("does not fit: rank "), "{sets:?}: {small}");
        assert_eq!((small.fp8, small.tuning), (fitting.fp8, fitting.tuning), "{sets:?}");
        let types = |capacity| plan_precision(config.clone(), &options(capacity)).unwrap().to_string();
        assert_eq!(types(None), types(capacity), "{sets:?}");
    }
}
