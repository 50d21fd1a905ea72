//! Pointwise functions and their derivatives.

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pointwise {
    /// e^x.
    Exp,
    /// The natural logarithm.
    Log,
    /// √x.
    Sqrt,
    /// 1/x.
    Reciprocal,
    /// x².
    Square,
    /// The hyperbolic tangent.
    Tanh,
    /// x times a number.
    Scale(f32),
    /// x plus a number.
    Shift(f32),
    /// c·tanh(x/c): values within ±c, and nearly x where |x| is small compared with c.
    SoftCap(f32),
}

impl Pointwise {
    pub(super) fn name(self) -> &'static str {
        match self {
            Pointwise::Exp => "exp",
            Pointwise::Log => "log",
            Pointwise::Sqrt => "sqrt",
            Pointwise::Reciprocal => "reciprocal",
            Pointwise::Square => "square",
            Pointwise::Tanh => "tanh",
            Pointwise::Scale(_) => "scale",
            Pointwise::Shift(_) => "shift",
            Pointwise::SoftCap(_) => "soft_cap",
        }
    }

    /// Returns the name of the derivative's kernel.
    pub(super) fn slope_name(self) -> &'static str {
        match self {
            Pointwise::Exp => "exp_back",
            Pointwise::Log => "log_back",
            Pointwise::Sqrt => "sqrt_back",
            Pointwise::Reciprocal => "reciprocal_back",
            Pointwise::Square => "square_back",
            Pointwise::Tanh => "tanh_back",
            Pointwise::Scale(_) => "scale_back",
            Pointwise::Shift(_) => "shift_back",
            Pointwise::SoftCap(_) => "soft_cap_back",
        }
    }

    /// Returns the function's scalar argument; 0 if it has none.
    pub(super) fn number(self) -> f32 {
        match self {
            Pointwise::Scale(number) | Pointwise::Shift(number) | Pointwise::SoftCap(number) => number,
            _ => 0.0,
        }
    }

    pub(super) fn value(self, x: f32) -> f32 {
        match self {
            Pointwise::Exp => libm::expf(x),
            Pointwise::Log => libm::logf(x),
            Pointwise::Sqrt => x.sqrt(),
            Pointwise::Reciprocal => 1.0 / x,
            Pointwise::Square => x * x,
            Pointwise::Tanh => libm::tanhf(x),
            Pointwise::Scale(number) => x * number,
            Pointwise::Shift(number) => x + number,
            Pointwise::SoftCap(cap) => soft_cap(x, cap),
        }
    }

    pub(super) fn slope(self, x: f32) -> f32 {
        match self {
            Pointwise::Exp => libm::expf(x),
            Pointwise::Log => 1.0 / x,
            Pointwise::Sqrt => 0.5 / x.sqrt(),
            Pointwise::Reciprocal => -1.0 / (x * x),
            Pointwise::Square => 2.0 * x,
            Pointwise::Tanh => 1.0 - libm::tanhf(x) * libm::tanhf(x),
            Pointwise::Scale(number) => number,
            Pointwise::Shift(_) => 1.0,
            Pointwise::SoftCap(cap) => soft_cap_slope(soft_cap(x, cap), cap),
        }
    }
}

/// Returns cap·tanh(x/cap).
pub(in crate::ops) fn soft_cap(x: f32, cap: f32) -> f32 {
    cap * libm::tanhf(x / cap)
}

/// Returns the derivative of [`soft_cap`] where its value is `y`.
pub(in crate::ops) fn soft_cap_slope(y: f32, cap: f32) -> f32 {
    1.0 - (y / cap) * (y / cap)
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    /// a + b.
    Add,
    /// a − b.
    Subtract,
    /// a · b.
    Multiply,
    /// a / b.
    Divide,
}

impl Pair {
    pub(super) fn name(self) -> &'static str {
        match self {
            Pair::Add => "add",
            Pair::Subtract => "subtract",
            Pair::Multiply => "multiply",
            Pair::Divide => "divide",
        }
    }

    pub(super) fn value(self, a: f32, b: f32) -> f32 {
        match self {
            Pair::Add => a + b,
            Pair::Subtract => a - b,
            Pair::Multiply => a * b,
            Pair::Divide => a / b,
        }
    }
}
