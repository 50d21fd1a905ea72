//! Updates of all parameters: checks, the loop on the CPU and the launches.

use device::parallel::{CHUNK, for_tasks, simd};
use device::{Backend, DType, Float, Function, ReadGuard, WriteGuard, bf16, dispatch};

use super::item::{Item, Storage};
use super::listing::{self, FAMILY};
use super::piece::{MOST_STATES, UpdateOperands};
use super::quantised;
use super::rule::UpdateRule;
use super::written::{Written, WrittenGuard};
use crate::ops::{StepState, Table, cast, check, gpu};
use crate::{Result, Tensor, TensorError};

/// Counts an update. Computes the coefficients that all elements share from the learning rate and gradient
/// factor in `state`. Does nothing if `state` is set to skip.
pub fn begin(rule: &UpdateRule, state: &StepState) -> Result<()> {
    compute_coefficients(rule, state, 1)
}

/// Replaces the coefficients in `state` by another rule's, for the update that [`begin`] counted. Does
/// nothing if `state` is set to skip.
pub fn change_rule(rule: &UpdateRule, state: &StepState) -> Result<()> {
    compute_coefficients(rule, state, 0)
}

/// Adds `count`, 1 or 0, to the number of updates, and computes the coefficients of the current update.
fn compute_coefficients(rule: &UpdateRule, state: &StepState, count: u32) -> Result<()> {
    let device = state.tensor().device();
    match device.backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => {
            let mut words = state.write()?;
            if !words.skip() {
                words.count_updates(count);
                let rate = words.learning_rate();
                let factor = words.factor();
                let coefficients = rule.coefficients(rate, words.updates(), factor);
                words.set_coefficients(&coefficients);
            }
            Ok(())
        }
        Backend::Cuda => {
            let (name, constants) = rule.begin_kernel();
            let launch = device.kernel(Function::new(&FAMILY, name)).write(state.region()).u32(count);
            let launch = constants.into_iter().fold(launch, |launch, constant| launch.f32(constant));
            Ok(launch.launch([1, 1, 1], 1)?)
        }
    }
}

/// Updates all items with the coefficients of the last [`begin`] or [`change_rule`]. If `state` is set to
/// skip, weights and states stay unchanged. Copies for computing are rounded from the weights in either case.
/// `table` must be made for that many items.
///
/// # Errors
/// Shapes, types or counts that do not agree, tensors that overlap.
pub fn update(table: &Table, rule: &UpdateRule, items: &[Item<'_>], state: &StepState) -> Result<()> {
    let operator = rule.operator();
    table.check(operator, items.len())?;
    items.iter().try_for_each(|item| check_item(rule, item))?;
    let dtype = check::gradients(operator, items.iter().map(|item| item.gradient))?;
    let Some(first) = items.first() else { return Ok(()) };
    match first.weight.device().backend() {
        Backend::Meta => Ok(()),
        Backend::Cpu => dispatch!(
            dtype,
            G => match first.storage() {
                Storage::Single => on_host::<G>(rule, items, state),
                Storage::Rounded => on_host_rounded::<G>(rule, items, state),
                Storage::Quantised => on_host_quantised::<G>(rule, items, state),
            },
            _ => Err(check::unsupported(operator, "gradient", first.gradient)),
        ),
        Backend::Cuda => on_gpu(table, rule, dtype, items, state),
    }
}

fn check_item(rule: &UpdateRule, item: &Item<'_>) -> Result<()> {
    let operator = rule.operator();
    let elements = item.weight.elements();
    let weight = if rule.writes_direction() { DType::Bf16 } else { DType::F32 };
    check::dtype(operator, "weight", item.weight, weight)?;
    check::elements(operator, "gradient", item.gradient, elements)?;
    check::count(operator, item.states.len(), rule.states().len())?;
    for (tensor, state) in item.states.iter().zip(rule.states()) {
        let expected = match item.storage() {
            Storage::Single => DType::F32,
            Storage::Rounded => DType::Bf16,
            Storage::Quantised => DType::U8,
        };
        check::dtype(operator, state.name, tensor, expected)?;
        check::elements(operator, state.name, tensor, elements)?;
    }
    let maxima = if item.storage() == Storage::Quantised { rule.states().len() } else { 0 };
    check::count(operator, item.maxima.len(), maxima)?;
    for (tensor, state) in item.maxima.iter().zip(rule.states()) {
        check::dtype(operator, state.name, tensor, DType::F32)?;
        check::elements(operator, state.name, tensor, quantised::blocks(elements))?;
    }
    let Some(compute) = item.compute else { return Ok(()) };
    if compute.dtype() == DType::F32 || !check::DTYPES.contains(&compute.dtype()) {
        let dtype = compute.dtype();
        let supported = &check::DTYPES[1..];
        return Err(TensorError::Unsupported { operator, operand: "compute", actual: dtype, supported });
    }
    check::elements(operator, "compute", compute, elements)
}

/// Updates all items in one launch of `kernels/optimizer.cu`.
fn on_gpu(
    table: &Table,
    rule: &UpdateRule,
    gradients: DType,
    items: &[Item<'_>],
    state: &StepState,
) -> Result<()> {
    let listing = listing::list(rule, table, items)?;
    let storage = items.first().map_or(Storage::Single, Item::storage);
    let kernel = Function::new(&FAMILY, rule.update_kernel(storage)).with_dtype(gradients);
    let launch = state.tensor().device().kernel(kernel);
    let launch = launch.read(listing.table).read(state.region()).u32(listing.count);
    Ok(launch.cost(listing.bytes, 0).launch([listing.blocks, 1, 1], gpu::THREADS)?)
}

fn on_host<G: Float>(rule: &UpdateRule, items: &[Item<'_>], state: &StepState) -> Result<()> {
    let words = state.read()?;
    if words.skip() {
        return copy_weights(items);
    }
    let coefficients = words.coefficients();
    let mut guards = items.iter().map(Guards::<G>::lock).collect::<Result<Vec<_>>>()?;
    let mut tasks = Vec::new();
    for (guards, item) in guards.iter_mut().zip(items) {
        let mut states: Vec<_> = guards.states.iter_mut().map(|state| state.chunks_mut(CHUNK)).collect();
        let values = guards.weight.chunks(CHUNK).into_iter().zip(guards.gradient.chunks(CHUNK));
        tasks.extend(values.map(|(weight, gradient)| {
            let mut states = states.iter_mut().map(|chunks| chunks.next().unwrap_or_default());
            let states = std::array::from_fn(|_| states.next().unwrap_or_default());
            (weight, gradient, states, item.decay)
        }));
    }
    type Task<'a, G> = (Written<'a>, &'a [G], [&'a mut [f32]; MOST_STATES], bool);
    for_tasks(tasks, |(written, gradient, states, decay): Task<'_, G>| {
        written.update(|weight| {
            simd(
                #[inline(always)]
                || rule.update(UpdateOperands { weight, gradient, states, decay }, &coefficients),
            );
        });
    });
    drop(guards);
    copy_weights(items)
}

/// Computes [`on_host`] for bf16 states.
fn on_host_rounded<G: Float>(rule: &UpdateRule, items: &[Item<'_>], state: &StepState) -> Result<()> {
    let words = state.read()?;
    if words.skip() {
        return copy_weights(items);
    }
    let coefficients = words.coefficients();
    let update = words.updates();
    for item in items {
        let decay = item.decay;
        let stream = item.stream;
        let mut weight = WrittenGuard::lock(item)?;
        let gradient = item.gradient.read::<G>()?;
        let mut states = item.states.iter().map(Tensor::write::<bf16>).collect::<Result<Vec<_>>>()?;
        let mut pieces: Vec<_> = states.iter_mut().map(|state| state.chunks_mut(CHUNK)).collect();
        let values = weight.chunks(CHUNK).into_iter().zip(gradient.chunks(CHUNK)).enumerate();
        let tasks = values.map(|(index, (weight, gradient))| {
            let states: Vec<_> = pieces.iter_mut().map(|state| state.next().unwrap_or_default()).collect();
            (index * CHUNK, weight, gradient, states)
        });
        type Task<'a, G> = (usize, Written<'a>, &'a [G], Vec<&'a mut [bf16]>);
        for_tasks(tasks.collect(), |(start, written, gradient, mut states): Task<'_, G>| {
            let widened = |state: &&mut [bf16]| state.iter().map(|value| value.to_f32()).collect();
            let mut wide: Vec<Vec<f32>> = states.iter().map(widened).collect();
            let mut slices = wide.iter_mut().map(Vec::as_mut_slice);
            let wide_states = std::array::from_fn(|_| slices.next().unwrap_or_default());
            written.update(|weight| {
                rule.update(UpdateOperands { weight, gradient, states: wide_states, decay }, &coefficients);
            });
            for (number, (wide, rounded)) in wide.iter().zip(&mut states).enumerate() {
                stream.round(wide, rounded, start, number, update);
            }
        });
    }
    copy_weights(items)
}

/// Computes [`on_host`] for 8-bit states.
fn on_host_quantised<G: Float>(rule: &UpdateRule, items: &[Item<'_>], state: &StepState) -> Result<()> {
    const BLOCKS: usize = CHUNK / quantised::BLOCK;
    let words = state.read()?;
    if words.skip() {
        return copy_weights(items);
    }
    let coefficients = words.coefficients();
    for item in items {
        let decay = item.decay;
        let mut weight = WrittenGuard::lock(item)?;
        let gradient = item.gradient.read::<G>()?;
        let mut codes = item.states.iter().map(Tensor::write::<u8>).collect::<Result<Vec<_>>>()?;
        let mut maxima = item.maxima.iter().map(Tensor::write::<f32>).collect::<Result<Vec<_>>>()?;
        let mut codes: Vec<_> = codes.iter_mut().map(|codes| codes.chunks_mut(CHUNK)).collect();
        let mut maxima: Vec<_> = maxima.iter_mut().map(|maxima| maxima.chunks_mut(BLOCKS)).collect();
        let values = weight.chunks(CHUNK).into_iter().zip(gradient.chunks(CHUNK));
        let tasks = values.map(|(weight, gradient)| {
            let codes = codes.iter_mut().map(|codes| codes.next().unwrap_or_default());
            let maxima = maxima.iter_mut().map(|maxima| maxima.next().unwrap_or_default());
            (weight, gradient, codes.zip(maxima).collect())
        });
        type Task<'a, G> = (Written<'a>, &'a [G], Vec<(&'a mut [u8], &'a mut [f32])>);
        for_tasks(tasks.collect(), |(written, gradient, mut states): Task<'_, G>| {
            let code = |number: usize| quantised::code(rule.states()[number].is_signed);
            let mut wide = vec![vec![0.0; gradient.len()]; states.len()];
            for (number, ((codes, maxima), wide)) in states.iter().zip(&mut wide).enumerate() {
                code(number).decode(codes, maxima, wide);
            }
            let mut slices = wide.iter_mut().map(Vec::as_mut_slice);
            let wide_states = std::array::from_fn(|_| slices.next().unwrap_or_default());
            written.update(|weight| {
                rule.update(UpdateOperands { weight, gradient, states: wide_states, decay }, &coefficients);
            });
            for (number, ((codes, maxima), wide)) in states.iter_mut().zip(&wide).enumerate() {
                code(number).encode(wide, codes, maxima);
            }
        });
    }
    copy_weights(items)
}

/// Rounds the weights into their copies for computing.
fn copy_weights(items: &[Item<'_>]) -> Result<()> {
    let copies = items.iter().filter_map(|item| Some((item.weight, item.compute?)));
    copies.into_iter().try_for_each(|(weight, compute)| {
        cast::into(&weight.reshape([weight.elements()])?, &compute.reshape([weight.elements()])?)
    })
}

struct Guards<'a, G> {
    weight: WrittenGuard<'a>,
    gradient: ReadGuard<'a, G>,
    states: Vec<WriteGuard<'a, f32>>,
}

impl<'a, G: Float> Guards<'a, G> {
    fn lock(item: &Item<'a>) -> Result<Self> {
        Ok(Guards {
            weight: WrittenGuard::lock(item)?,
            gradient: item.gradient.read()?,
            states: item.states.iter().map(Tensor::write).collect::<Result<_>>()?,
        })
    }
}
