//! Enumerations whose variants have names.

/// Defines an enumeration whose variants have names in files, messages and configurations. Besides the
/// variants it defines `ALL`, in the order of declaration, and `name`.
///
/// ```
/// system::names! {
///     /// A colour.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Colour {
///         /// Warm.
///         Red = "red",
///         /// Cold.
///         Blue = "blue",
///     }
/// }
/// assert_eq!(Colour::ALL.map(Colour::name), ["red", "blue"]);
/// ```
#[macro_export]
macro_rules! names {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$value_attribute:meta])* $value:ident = $text:literal),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $name {
            $($(#[$value_attribute])* $value),+
        }

        impl $name {
            /// All variants, in the order of declaration.
            $visibility const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// Returns the name in files, messages and configurations.
            #[must_use]
            $visibility const fn name(self) -> &'static str {
                match self { $(Self::$value => $text),+ }
            }
        }
    };
}
