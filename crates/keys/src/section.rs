//! Sections: structs defined together with the rows of their keys.

use crate::error::Result;
use crate::key::Key;
use crate::raw_values::RawValues;
use crate::value::Value;

/// Access to the values of a section's keys.
pub trait KeyValues {
    /// Returns the values of all keys, in the order of [`Section::keys`].
    fn values(&self) -> Vec<Value>;
}

/// A section of the configuration, or its keys for one value of another key.
pub trait Section: KeyValues + Sized {
    /// Returns the keys, in the order of the fields.
    fn keys() -> Vec<&'static Key>;

    /// Reads all fields.
    ///
    /// # Errors
    /// The first value that its key does not accept.
    fn read(raw: &RawValues) -> Result<Self>;
}

/// Defines a section: a struct, the rows of its keys, and its [`Section`] and [`KeyValues`] implementations.
///
/// Each field is written `name: Type = row;` after a doc comment, which documents both the field and the key.
/// Each key's path is a constant with the field's name: `Train::steps` is `"train.steps"`.
#[macro_export]
macro_rules! section {
    (
        $(#[$meta:meta])*
        pub struct $section:ident = $name:literal {
            $($(#[doc = $doc:literal])+ $field:ident: $type:ty = $row:expr;)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $section {
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        // Fields and associated constants are separate namespaces, so they may share names.
        #[allow(non_upper_case_globals)]
        impl $section {
            $(
                #[doc = concat!("The path `", $name, ".", stringify!($field), "`.")]
                pub const $field: &'static str = concat!($name, ".", stringify!($field));
            )+
        }

        const _: () = {
            $(
                #[allow(non_upper_case_globals)]
                static $field: $crate::Row<$type> =
                    ($row).at($name, stringify!($field), $section::$field, &[$($doc),+]);
            )+

            impl $crate::Section for $section {
                fn keys() -> Vec<&'static $crate::Key> {
                    vec![$($field.key()),+]
                }

                fn read(raw: &$crate::RawValues) -> $crate::Result<Self> {
                    Ok(Self { $($field: $field.read(raw)?),+ })
                }
            }

            impl $crate::KeyValues for $section {
                fn values(&self) -> Vec<$crate::Value> {
                    vec![$($field.write(&self.$field)),+]
                }
            }
        };
    };
}
