//! The tokens of a conversation that are targets of the loss.

use std::fmt;

system::names! {
    /// A role of messages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Role {
        /// Instructions before the conversation.
        System = "system",
        /// The person who asks.
        User = "user",
        /// The model.
        Assistant = "assistant",
        /// The result of a function that the assistant called.
        Tool = "tool",
    }
}

/// The tokens of a conversation that are targets of the loss.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TrainOn {
    /// Answers: what the template marks by `{% generation %}`, or else the messages of the assistant.
    #[default]
    Answers,
    /// All tokens after the first.
    All,
    /// The messages of some roles, in the order of [`Role::ALL`] and each once.
    Roles(Vec<Role>),
}

impl TrainOn {
    /// Names of the values that are not lists.
    pub const NAMES: [&str; 2] = ["answers", "all"];

    /// Returns the value of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "answers" => Some(Self::Answers),
            "all" => Some(Self::All),
            _ => None,
        }
    }

    /// Returns the value of a list of roles; `None` if one is unknown or the list is empty.
    #[must_use]
    pub fn of_roles<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let role = |name: &str| Role::ALL.into_iter().find(|role| role.name() == name);
        let mut roles: Vec<Role> = names.into_iter().map(role).collect::<Option<_>>()?;
        roles.sort_unstable();
        roles.dedup();
        (!roles.is_empty()).then_some(Self::Roles(roles))
    }

    /// Returns whether messages of a role are learnt.
    pub(super) fn learns(&self, role: &str) -> bool {
        match self {
            Self::Answers => role == Role::Assistant.name(),
            Self::All => true,
            Self::Roles(roles) => roles.iter().any(|learnt| learnt.name() == role),
        }
    }
}

/// Formats as the value of a configuration: `"all"` or `["user", "tool"]`.
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
