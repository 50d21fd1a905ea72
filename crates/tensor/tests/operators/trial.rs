//! A harness that runs one declaration of an operator on every device and type.

use std::ops::Deref;

use device::Device;
use tensor::ops::GradientTarget;
use tensor::{DType, Tensor};

use crate::support::{Case, bits, close, devices, dot, read};

/// Name of an operator, and the function that calls it in every size.
pub(crate) type Declaration = (&'static str, fn(&mut Trial<'_>));

/// Callback that receives the operator's name, the name of a result, and the result.
pub(crate) type Follow<'a> = &'a mut dyn FnMut(&'static str, &'static str, &Tensor);

/// One run of an operator's [`Declaration`], on one device in one type.
pub(crate) struct Trial<'a> {
    case: Case,
    operator: &'static str,
    /// Type of gradient targets.
    gradients: DType,
    /// Sizes and settings of the current calls, for messages.
    label: String,
    /// Callback that receives every result; `None`: values are compared.
    follow: Option<Follow<'a>>,
}

impl Deref for Trial<'_> {
    type Target = Case;

    fn deref(&self) -> &Case {
        &self.case
    }
}

/// Runs a declaration on every device in every type, comparing values.
pub(crate) fn compare((operator, declared): Declaration) {
    for case in devices() {
        let gradients = DType::F32;
        let label = String::new();
        declared(&mut Trial { case, operator, gradients, label, follow: None });
    }
}

/// Runs the declarations of all operators on a device in `dtype`, with weight gradients in `gradients`. Calls
/// `follow` with every result.
pub(crate) fn follow_all(device: &Device, [dtype, gradients]: [DType; 2], follow: Follow<'_>) {
    for (operator, declared) in crate::OPERATORS {
        let case = Case::new(device.clone(), dtype);
        let follow: Option<Follow<'_>> = Some(&mut *follow);
        declared(&mut Trial { case, operator, gradients, label: String::new(), follow });
    }
}

impl Trial<'_> {
    /// Sets the sizes and settings of the next calls, for messages.
    pub(crate) fn label(&mut self, label: String) {
        self.label = label;
    }

    /// Returns whether values are compared; if not, callers skip the computation of references.
    pub(crate) fn compares(&self) -> bool {
        self.follow.is_none()
    }

    /// Describes a result for messages: operator, result and sizes.
    pub(crate) fn what(&self, part: &str) -> String {
        format!("{} {part} of {}", self.operator, self.label)
    }

    /// Returns [`Trial::what`] with device and type.
    fn what_here(&self, part: &str) -> String {
        format!("{}, {}", self.what(part), self.name())
    }

    fn follow(&mut self, part: &'static str, result: &Tensor) -> bool {
        if let Some(follow) = &mut self.follow {
            follow(self.operator, part, result);
        }
        self.follow.is_some()
    }

    /// Passes a result to the callback, without comparing it with expected values.
    pub(crate) fn result(&mut self, part: &'static str, result: &Tensor) {
        self.follow(part, result);
    }

    /// Compares a result, within the tolerance of its type.
    pub(crate) fn output(
        &mut self,
        part: &'static str,
        actual: &Tensor,
        expected: impl FnOnce() -> Vec<f64>,
    ) {
        if !self.follow(part, actual) {
            self.close(&self.what(part), &read(actual), &expected());
        }
    }

    /// Compares a result that is f32 for operands of any type.
    pub(crate) fn single_output(
        &mut self,
        part: &'static str,
        actual: &Tensor,
        expected: impl FnOnce() -> Vec<f64>,
    ) {
        if !self.follow(part, actual) {
            close(&self.what_here(part), &read(actual), &expected());
        }
    }

    /// Compares a result that must equal `expected` exactly, or rounded once to its type.
    pub(crate) fn rounded_output(
        &mut self,
        part: &'static str,
        actual: &Tensor,
        expected: impl FnOnce() -> Vec<f64>,
    ) {
        if !self.follow(part, actual) {
            let round = |value: f64| match actual.dtype() {
                DType::F32 => f64::from(value as f32),
                _ => f64::from(self.round(value as f32)),
            };
            let expected: Vec<f64> = expected().into_iter().map(round).collect();
            assert_eq!(read(actual), expected, "{}", self.what_here(part));
        }
    }

    /// Compares the bits of two results.
    pub(crate) fn same(&mut self, part: &'static str, actual: &Tensor, expected: &Tensor) {
        if !self.follow(part, actual) {
            assert_eq!(bits(actual), bits(expected), "{}", self.what_here(part));
        }
    }

    /// Compares a gradient of `function` at `point` with finite differences. The tolerance is relative to the
    /// norm of the gradient or, if larger, to `terms`: the norm of terms that may cancel.
    pub(crate) fn gradient(
        &mut self,
        part: &'static str,
        gradient: &Tensor,
        (point, terms): (&[f64], f64),
        function: impl Fn(&[f64]) -> f64 + Sync,
    ) {
        if !self.follow(part, gradient) {
            self.is_gradient_of_terms(&self.what(part), terms, &read(gradient), point, function);
        }
    }

    /// Compares some elements of the gradient of Σ dy · `function`(x), as [`Trial::gradient`] does.
    pub(crate) fn chosen_gradient(
        &mut self,
        part: &'static str,
        gradient: &Tensor,
        (indices, x, dy): (&[usize], &[f64], &[f64]),
        function: impl Fn(f64) -> f64 + Sync,
    ) {
        if !self.follow(part, gradient) {
            let chosen = |values: &[f64]| -> Vec<f64> { indices.iter().map(|i| values[*i]).collect() };
            // The terms of a derivative may cancel.
            let actual = chosen(&read(gradient));
            let dy = chosen(dy);
            let terms = dot(&dy, &dy).sqrt();
            self.is_gradient_of_terms(&self.what(part), terms, &actual, &chosen(x), |x| {
                dy.iter().zip(x).map(|(dy, x)| dy * function(*x)).sum()
            });
        }
    }

    /// Compares what was added to a target of [`Trial::target`] for `part`, as [`Trial::gradient`] does.
    pub(crate) fn weight_gradient(
        &mut self,
        part: &'static str,
        target: &GradientTarget,
        (point, terms): (&[f64], f64),
        function: impl Fn(&[f64]) -> f64 + Sync,
    ) {
        if !self.follow(part, &target.tensor) {
            let gradient = self.added(target, part);
            self.is_gradient_of_terms(&self.what(part), terms, &gradient, point, function);
        }
    }

    /// Compares what was added to a target of [`Trial::target`] for `part`, as [`Trial::output`] does.
    pub(crate) fn weight_gradient_is(
        &mut self,
        part: &'static str,
        target: &GradientTarget,
        expected: impl FnOnce() -> Vec<f64>,
    ) {
        if !self.follow(part, &target.tensor) {
            self.close(&self.what(part), &self.added(target, part), &expected());
        }
    }

    /// Checks that the second of [`Case::targets`] is the first, rounded to its type.
    pub(crate) fn rounded(&mut self, part: &'static str, targets: &[GradientTarget; 2]) {
        if !self.follow(part, &targets[1].tensor) {
            self.is_rounded(&self.what(part), targets);
        }
    }

    /// Returns a gradient target, filled with NaN if it is to be overwritten and values are compared.
    pub(crate) fn target<const N: usize>(
        &self,
        part: &str,
        shape: [usize; N],
        accumulate: bool,
    ) -> GradientTarget {
        match self.compares() {
            true => self.case.target(part, shape, accumulate),
            false => self.case.target_in(self.gradients, part, shape, accumulate),
        }
    }
}
