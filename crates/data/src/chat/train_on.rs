//! Selects the tokens of a conversation that are trained on.

use std::fmt;

system::names! {
    /// A role of messages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Role {
        /// Instructions before the conversation.
        System = "system",
        /// The human side of the conversation.
        User = "user",
        /// The model's side of the conversation.
        Assistant = "assistant",
        /// The result of a function that the assistant called.
        Tool = "tool",
    }
}

/// Selects the tokens of a conversation to train on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TrainOn {
    /// Answers: those marked by the template's `{% generation %}`, or else the assistant's messages.
    #[default]
    Answers,
    /// All tokens after the first.
    All,
    /// Messages of these roles, each listed once, in the order of [`Role::ALL`].
    Roles(Vec<Role>),
}

impl TrainOn {
    /// Names of the values that are not lists.
    pub const NAMES: [&str; 2] = ["answers", "all"];

    /// Returns the value with this name; `None` if there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "answers" => Some(Self::Answers),
            "all" => Some(Self::All),
            _ => None,
        }
    }

    /// Returns the value for a list of roles; `None` if a role is unknown or the list is empty.
    #[must_use]
    pub fn of_roles<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let role = |name: &str| Role::ALL.into_iter().find(|role| role.name() == name);
        let mut roles: Vec<Role> = names.into_iter().map(role).collect::<Option<_>>()?;
        roles.sort_unstable();
        roles.dedup();
        (!roles.is_empty()).then_some(Self::Roles(roles))
    }

    /// Returns whether messages of a role are trained on.
    pub(super) fn learns(&self, role: &str) -> bool {
        match self {
            Self::Answers => role == Role::Assistant.name(),
            Self::All => true,
            Self::Roles(roles) => roles.iter().any(|learnt| learnt.name() == role),
        }
    }
}

/// Formats the value as in a configuration: `"all"` or `["user", "tool"]`.
impl fmt::Display for TrainOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answers => f.write_str("\"answers\""),
            Self::All => f.write_str("\"all\""),
            Self::Roles(roles) => {
                let names: Vec<String> = roles.iter().map(|role| format!("\"{}\"", role.name())).collect();
                write!(f, "[{}]", names.join(", "))
            }
        }
    }
}
