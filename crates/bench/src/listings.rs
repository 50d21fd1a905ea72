//! Well-known memory listings: small programs whose figures tutorials on PyTorch's allocator print, run on a
//! device of this machine.

use autograd::{Gradients, Mode, Tape, Var};
use device::{Category, DType, Device, Request};
use nn::models::{Mlp, MlpSizes};
use nn::{Input, Model, Parameters, Stage};
use tensor::Tensor;
use tensor::ops::Activation;

use crate::error::Result;

const MIB: usize = 1 << 20;
/// Number of graphs that are kept, and consumed.
const GRAPHS: usize = 4;

/// A figure of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedFigure {
    /// Name of the figure.
    pub what: String,
    /// Bytes in PyTorch on a GPU; `None` if the figure is not in its listing.
    pub known: Option<u64>,
    /// Bytes on the device.
    pub bytes: u64,
}

/// A listing: its title, and its figures in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The program in words.
    pub title: &'static str,
    /// The figures.
    pub figures: Vec<ListedFigure>,
}

/// A listing that is being taken, with the device's bytes at its start, such as a GPU's workspace.
struct Taken<'a> {
    device: &'a Device,
    start: (u64, u64),
    listing: Listing,
}

impl<'a> Taken<'a> {
    fn begin(device: &'a Device, title: &'static str) -> Result<Self> {
        device.empty_cache()?;
        let statistics = device.statistics();
        let start = (statistics.allocated(), statistics.reserved());
        Ok(Taken { device, start, listing: Listing { title, figures: Vec::new() } })
    }

    fn allocated(&self) -> u64 {
        self.device.statistics().allocated() - self.start.0
    }

    fn note(&mut self, what: impl Into<String>, known: impl Into<Option<u64>>, bytes: u64) {
        self.listing.figures.push(ListedFigure { what: what.into(), known: known.into(), bytes });
    }

    fn note_allocated(&mut self, what: impl Into<String>, known: impl Into<Option<u64>>) {
        self.note(what, known, self.allocated());
    }

    fn note_reserved(&mut self, what: &str, known: u64) {
        self.note(what, known, self.device.statistics().reserved() - self.start.1);
    }

    fn floats(&self, count: usize) -> Result<Tensor> {
        Ok(Tensor::empty(self.device, [count], DType::F32, Request::new(Category::Other, "memory"))?)
    }
}

/// Runs the listings on a device that is used for nothing else. Errors: out of memory, of which 400 MB are
/// needed.
pub fn memory_listings(device: &Device) -> Result<Vec<Listing>> {
    Ok(vec![
        two_tensors(device)?,
        one_matrix(device)?,
        many_floats(device)?,
        five_layers(device)?,
        graphs(device)?,
    ])
}

fn two_tensors(device: &Device) -> Result<Listing> {
    let mut taken = Taken::begin(device, "tensors of 4 and 16 MiB; the second has two owners")?;
    let first = taken.floats(MIB)?;
    let second = taken.floats(4 * MIB)?;
    let owner = second.clone();
    taken.note_allocated("allocated", 20_971_520);
    drop(first);
    taken.note_allocated("without the first tensor", 16_777_216);
    drop(second);
    taken.note_allocated("without the second's first owner", 16_777_216);
    drop(owner);
    taken.note_allocated("without its other owner", 0);
    Ok(taken.listing)
}

fn one_matrix(device: &Device) -> Result<Listing> {
    let mut taken = Taken::begin(device, "a tensor of 1000 × 1000 floats")?;
    let matrix = taken.floats(1_000_000)?;
    taken.note_allocated("allocated (3.81 MiB)", 4_000_256);
    taken.note_reserved("reserved (20.00 MiB)", 20_971_520);
    drop(matrix);
    Ok(taken.listing)
}

fn many_floats(device: &Device) -> Result<Listing> {
    let mut taken = Taken::begin(device, "a tensor of 100,000,000 floats")?;
    let floats = taken.floats(100_000_000)?;
    taken.note_allocated("allocated", 400_556_032);
    taken.note_reserved("reserved", 400_556_032);
    drop(floats);
    Ok(taken.listing)
}

/// The five-layer model of the listings.
fn model(device: &Device) -> Result<Mlp> {
    let sizes = MlpSizes { sizes: vec![3, 300, 300, 400, 300, 100], activation: Activation::Relu };
    Ok(Mlp::new(Parameters::new(device, 1, DType::F32), &sizes, &Stage::whole(5))?)
}

fn batch(device: &Device) -> Result<(Tensor, Tensor)> {
    let inputs = Tensor::from_host(device, &[0.5_f32; 30], [10, 3], Category::Input)?;
    let targets = Tensor::from_host(device, &[0.25_f32; 1000], [10, 100], Category::Input)?;
    Ok((inputs, targets))
}

fn five_layers(device: &Device) -> Result<Listing> {
    let mut taken = Taken::begin(device, "a model of five layers: 10 × 3 inputs, 10 × 100 targets")?;
    let (inputs, targets) = batch(device)?;
    taken.note_allocated("inputs and targets", 4_608);
    let model = model(device)?;
    let before = taken.allocated();
    taken.note("and the model", 1_457_152, before);
    let tape = Tape::new(device, Mode::Train);
    let prediction = model.forward(&tape, Input::Batch(inputs))?;
    taken.note("growth in the forward pass", 57_344, taken.allocated() - before);
    let loss = model.loss(&tape, prediction, &targets, 1.0)?;
    taken.note("growth with the loss", 57_344 + 512, taken.allocated() - before);
    let mut gradients = Gradients::default();
    tape.backward(loss, &mut gradients)?;
    drop((gradients, targets));
    taken.note_allocated("after backward, without batch and gradients", 1_457_152 - 4_608);
    Ok(taken.listing)
}

/// A step of the model up to its loss.
fn forward(device: &Device, model: &Mlp) -> Result<(Tape, Var)> {
    let (inputs, targets) = batch(device)?;
    let tape = Tape::new(device, Mode::Train);
    let prediction = model.forward(&tape, Input::Batch(inputs))?;
    let loss = model.loss(&tape, prediction, &targets, 1.0)?;
    Ok((tape, loss))
}

fn graphs(device: &Device) -> Result<Listing> {
    let mut taken =
        Taken::begin(device, "losses of that model: their graphs kept, and consumed by backward")?;
    let model = model(device)?;
    let before = taken.allocated();
    let mut kept = Vec::new();
    for number in 1..=GRAPHS {
        kept.push(forward(device, &model)?);
        taken.note(format!("growth with {number} kept"), None, taken.allocated() - before);
    }
    drop(kept);
    for number in 1..=GRAPHS {
        let (tape, loss) = forward(device, &model)?;
        tape.backward(loss, &mut Gradients::default())?;
        taken.note(format!("growth with {number} consumed"), 0, taken.allocated() - before);
    }
    Ok(taken.listing)
}
