//! The harness of operators. An operator is declared once, as a function that calls it and says what is
//! expected of each result. A run of the declaration compares results with float64 and gradients with
//! differences; another follows results from call to call, which must be the same on any number of threads
//! and every time, and whose memory must be that of Meta.

use std::ops::Deref;

use device::Device;
use tensor::ops::GradientTarget;
use tensor::{DType, Tensor};

use crate::support::{Case, bits, close, devices, dot, read};

/// The declaration of an operator: its name, and the function that calls it in every size.
pub(crate) type Declaration = (&'static str, fn(&mut Trial<'_>));

/// Called with the operator, the part of its results, and that part.
pub(crate) type Follow<'a> = &'a mut dyn FnMut(&'static str, &'static str, &Tensor);

/// A run of a declaration on one device, in one type.
pub(crate) struct Trial<'a> {
    case: Case,
    operator: &'static str,
    /// Type of the targets of gradients.
    gradients: DType,
    /// Sizes and settings of the present calls, for messages.
    label: String,
    /// `None`: values are compared.
    follow: Option<Follow<'a>>,
}

impl Deref for Trial<'_> {
    type Target = Case;

    fn deref(&self) -> &Case {
        &self.case
    }
}

/// Runs a declaration on every device in every type, and compares values.
pub(crate) fn compare((operator, declared): Declaration) {
    for case in devices() {
        let gradients = DType::F32;
        let label = String::new();
        declared(&mut Trial { case, operator, gradients, label, follow: None });
    }
}

/// Runs the declarations of all operators on a device in `dtype`, with gradients of weights in `gradients`,
/// and calls `follow` with every result.
pub(crate) fn follow_all(device: &Device, [dtype, gradients]: [DType; 2], follow: Follow<'_>) {
    for (operator, declared) in crate::OPERATORS {
        let case = Case::new(device.clone(), dtype);
        let follow: Option<Follow<'_>> = Some(&mut *follow);
        declared(&mut Trial { case, operator, gradients, label: String::new(), follow });
    }
}

impl Trial<'_> {
    /// Names the sizes and settings of the calls to come.
    pub(crate) fn label(&mut self, label: String) {
        self.label = label;
    }

    /// Whether values are compared; otherwise references are not worth their time.
    pub(crate) fn compares(&self) -> bool {
        self.follow.is_none()
    }

    /// The operator, the part and sizes, for messages.
    pub(crate) fn what(&self, part: &str) -> String {
        format!("{} {part} of {}", self.operator, self.label)
    }

    /// [`Trial::what`] with device and type.
    fn what_here(&self, part: &str) -> String {
        format!("{}, {}", self.what(part), self.name())
    }

    fn follow(&mut self, part: &'static str, result: &Tensor) -> bool {
        if let Some(follow) = &mut self.follow {
            follow(self.operator, part, result);
        }
        self.follow.is_some()
    }

    /// Follows a result of which nothing is known but what other results say.
    pub(crate) fn result(&mut self, part: &'static str, result: &Tensor) {
        self.follow(part, result);
    }

    /// A result within the tolerance of its type.
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

    /// A result in f32 whatever the type of the operands is.
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

    /// A result that is `expected` exactly, or rounded once to its type.
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

    /// A result with the bits of another one.
    pub(crate) fn same(&mut self, part: &'static str, actual: &Tensor, expected: &Tensor) {
        if !self.follow(part, actual) {
            assert_eq!(bits(actual), bits(expected), "{}", self.what_here(part));
        }
    }

    /// The gradient of `function` at `point`, with a tolerance relative to `terms`, the root of the sum of
    /// the squares of terms that may cancel, if that is larger than the gradient.
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

    /// [`Trial::gradient`] of Σ dy · `function`(x), element by element, at some indices.
    pub(crate) fn chosen_gradient(
        &mut self,
        part: &'static str,
        gradient: &Tensor,
        (indices, x, dy): (&[usize], &[f64], &[f64]),
        function: impl Fn(f64) -> f64 + Sync,
    ) {
        if !self.follow(part, gradient) {
            let of = |values: &[f64]| -> Vec<f64> { indices.iter().map(|i| values[*i]).collect() };
            // The terms of a derivative may cancel.
            let actual = of(&read(gradient));
            let dy = of(dy);
            let terms = dot(&dy, &dy).sqrt();
            self.is_gradient_of_terms(&self.what(part), terms, &actual, &of(x), |x| {
                dy.iter().zip(x).map(|(dy, x)| dy * function(*x)).sum()
            });
        }
    }

    /// [`Trial::gradient`] of what was added to a target that [`Trial::target`] made with `part`.
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

    /// [`Trial::output`] of what was added to a target that [`Trial::target`] made with `part`.
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

    /// The second of [`Case::targets`] has the rounded values of the first.
    pub(crate) fn rounded(&mut self, part: &'static str, targets: &[GradientTarget; 2]) {
        if !self.follow(part, &targets[1].tensor) {
            self.is_rounded(&self.what(part), targets);
        }
    }

    /// A target of gradients, filled with NaN if it is to be overwritten and values are compared.
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
