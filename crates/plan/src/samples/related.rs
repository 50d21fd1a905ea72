//! Kinds of matmuls and convolutions whose measured ratios apply to each other.

/// Squared distance, in doublings of a size, between calls in the two half types.
pub(super) const DIFFERENCE_OF_HALVES: f64 = 0.05;
/// Squared distance, in doublings of a size, between kinds of matmuls that differ in dtype, operation or
/// epilogue.
const DIFFERENCE: f64 = 1.0;
/// Squared distance between kinds of matmuls that differ in other components.
const DIFFERENCE_OF_REST: f64 = 9.0;
/// Squared distance between convolutions of images of different sizes, besides that of the sizes.
const DIFFERENCE_OF_IMAGES: f64 = 0.1;

/// The components of a kind's name.
#[derive(Clone, Debug)]
pub(super) struct RelatedKind {
    pub(super) kind: String,
    /// Components that related kinds share. Matmul: layout, tensor cores and alignment. Convolution: tensor
    /// cores, pass, kernel and stride.
    pub(super) class: String,
    /// Other components, each with the squared distance to kinds that differ in it.
    parts: Vec<(String, f64)>,
    /// Height and width of a convolution's output image.
    image: Option<[f64; 2]>,
}

impl RelatedKind {
    /// Parses a kind; `None` for calls that are neither matmuls nor convolutions.
    pub(super) fn parse(kind: &str) -> Option<Self> {
        let (call, rest) = kind.split_once(' ')?;
        match call {
            "matmul" => Self::matmul(kind, rest),
            "convolution" => Self::convolution(kind, rest),
            _ => None,
        }
    }

    fn matmul(kind: &str, key: &str) -> Option<Self> {
        let (key, rows) = key.split_once(" rows of ").unwrap_or((key, "8"));
        let is_rounded = key.ends_with(" tf32");
        let mut parts = key.strip_suffix(" tf32").unwrap_or(key).splitn(5, ' ').map(str::to_owned);
        let [layout, dtypes, operation, epilogue] = [(); 4].map(|()| parts.next().unwrap_or_default());
        let class = format!("{layout} {} {is_rounded} {rows}", cores(dtypes.split(',').next()?));
        let rest = parts.next().unwrap_or_default();
        let parts = [dtypes, operation, epilogue].map(|part| (part, DIFFERENCE));
        let parts = parts.into_iter().chain([(rest, DIFFERENCE_OF_REST)]).collect();
        Some(RelatedKind { kind: kind.to_owned(), class, parts, image: None })
    }

    fn convolution(kind: &str, key: &str) -> Option<Self> {
        let (dtype, rest) = key.split_once(' ')?;
        let (shape, image) = rest.split_once(" of ").unwrap_or((rest, ""));
        let side = |side: &str| side.parse::<f64>().ok().filter(|side| *side >= 1.0);
        let sides = image.split_once('x').and_then(|(height, width)| Some([side(height)?, side(width)?]));
        let class = format!("convolution {} {shape}", cores(dtype));
        let parts = vec![(dtype.to_owned(), DIFFERENCE_OF_HALVES), (image.to_owned(), DIFFERENCE_OF_IMAGES)];
        Some(RelatedKind { kind: kind.to_owned(), class, parts, image: sides })
    }

    /// Returns the squared distance to a kind of the same class, in doublings of a size.
    pub(super) fn difference(&self, other: &Self) -> f64 {
        let parts = self.parts.iter().zip(&other.parts);
        let parts: f64 = parts.map(|((one, own), (other, _))| if one == other { 0.0 } else { *own }).sum();
        let images = self.image.zip(other.image).map_or(0.0, |(one, other)| {
            let squares = one.into_iter().zip(other).map(|(one, other)| (one / other).log2().powi(2));
            squares.sum::<f64>() / 2.0
        });
        parts + images
    }
}

/// Returns the tensor cores that a dtype uses.
fn cores(dtype: &str) -> &str {
    match dtype {
        "bf16" | "f16" => "half",
        other => other,
    }
}
