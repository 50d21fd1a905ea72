//! Sizes of the grid of ranks, as stored in files.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Number of ranks along each axis, the slowest-varying axis first. Serialized as an object, such as
/// `{"data": 2, "pipeline": 4}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GridSizes(Vec<(String, usize)>);

impl<N: Into<String>> FromIterator<(N, usize)> for GridSizes {
    fn from_iter<I: IntoIterator<Item = (N, usize)>>(sizes: I) -> Self {
        GridSizes(sizes.into_iter().map(|(name, size)| (name.into(), size)).collect())
    }
}

/// Formats the sizes in the order of the axes, as in `2 × 4`.
impl fmt::Display for GridSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<_> = self.0.iter().map(|(_, size)| size.to_string()).collect();
        f.write_str(&sizes.join(" × "))
    }
}

impl Serialize for GridSizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, size)| (name, size)))
    }
}

impl<'de> Deserialize<'de> for GridSizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Axes)
    }
}

/// Deserializes the entries in the order of the file.
struct Axes;

impl<'de> Visitor<'de> for Axes {
    type Value = GridSizes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("numbers of ranks by axis")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<GridSizes, A::Error> {
        let mut sizes = GridSizes::default();
        while let Some(entry) = map.next_entry()? {
            sizes.0.push(entry);
        }
        Ok(sizes)
    }
}
