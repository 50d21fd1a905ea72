//! Roles of parameters in a model. Optimizers choose rules by role.

use super::Parameters;
use crate::error::Result;

/// Role of a parameter in its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterRole {
    /// A table of tokens or positions. A tied head uses a parameter of this role.
    Embedding,
    /// The matrix of the layer that computes the model's output.
    Head,
    /// A matrix of a hidden layer, or a stack of such matrices.
    Hidden,
    /// Any other parameter of two or more dimensions, such as a router's matrix or the filters of a
    /// convolution.
    Matrix,
    /// A parameter of one dimension, such as a bias or the weights of a norm.
    Vector,
}

impl ParameterRole {
    /// Returns whether the parameter has one dimension.
    #[must_use]
    pub const fn is_vector(self) -> bool {
        matches!(self, ParameterRole::Vector)
    }

    /// Returns the role of a parameter of `dims` dimensions that is created as `matrix` if it has two or
    /// more.
    pub(super) fn from_dims(dims: usize, matrix: ParameterRole) -> Self {
        if dims >= 2 { matrix } else { ParameterRole::Vector }
    }
}

impl Parameters {
    /// Calls `create`, whose new parameters of two or more dimensions have the role `role`.
    ///
    /// # Errors
    /// Errors of `create`.
    pub fn with_role<T>(
        &mut self,
        role: ParameterRole,
        create: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let outer = std::mem::replace(&mut self.role, role);
        let created = create(self);
        self.role = outer;
        created
    }
}
