//! The tape: backward rules in the order of the operator calls.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};

use device::{Device, Label};
use tensor::Tensor;

use crate::error::{AutogradError, Result};
use crate::mode::Mode;
use crate::observer::{Call, Direction};
use crate::pass::Pass;
use crate::rule::Rule;
use crate::sharded::{BlockIndex, Pieces, Source, ValueId, Var};

/// Number of the next tape; distinguishes variables of different tapes.
static NEXT_TAPE: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Node {
    pub(crate) rule: Box<dyn Rule>,
    pub(crate) inputs: Vec<Option<u32>>,
    /// Index of the first output; the others follow.
    pub(crate) first_output: u32,
    pub(crate) outputs: u32,
    pub(crate) module: Label,
    /// The block that the call computed; `None` for an undivided value.
    pub(crate) block: Option<BlockIndex>,
}

#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) values: u32,
    pub(crate) leaves: Vec<u32>,
}

/// Size of one tensor that a rule keeps alive between forward and backward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedBytes {
    /// The module that made the call.
    pub module: Label,
    /// The operator.
    pub operator: &'static str,
    /// Name of the tensor within the rule.
    pub name: &'static str,
    /// Bytes of the tensor's elements.
    pub bytes: usize,
}

/// A pass, and the passes of its local pieces.
pub(crate) type SharedPass = (Rc<Pass>, Rc<[Pass]>);

/// A list of backward rules in call order, consumed by backward.
pub struct Tape {
    id: u32,
    device: Device,
    mode: Mode,
    pass: Rc<Pass>,
    /// The passes of the local pieces.
    pieces: Rc<[Pass]>,
    /// The block that calls compute at present, within [`map`](crate::map).
    block: Cell<Option<BlockIndex>>,
    records: bool,
    /// Number of operator calls so far, recorded or not.
    calls: Cell<u32>,
    /// The operator whose call is in progress, if there are observers.
    begun: Cell<Option<&'static str>>,
    /// On a tape of a segment's first run, whether any call so far has trained weights.
    has_weights: Cell<bool>,
    /// Whether the tape records nothing because its segment will be recomputed.
    is_first_run: bool,
    /// Number of operator calls in the segment that this tape recomputes, if any.
    replayed: Option<u32>,
    pub(crate) graph: RefCell<Graph>,
}

impl Tape {
    /// Creates a tape for a pass in `mode`. In [`Mode::Evaluate`] it records nothing: operators save no
    /// tensors, and variables have no gradients.
    pub fn new(device: &Device, mode: Mode) -> Self {
        Self::with_records(device, mode, mode != Mode::Evaluate)
    }

    /// Sets the pass; by default it is micro-batch 0 without documents. Call this before any operator.
    #[must_use]
    pub fn with_pass(self, pass: Pass) -> Self {
        Tape { pieces: pass.of_pieces().into(), pass: Rc::new(pass), ..self }
    }

    /// Creates a tape of the same device, mode and pass for the first run of a recomputed segment. It records
    /// only whether there are trained weights.
    pub(crate) fn first_run(&self) -> Self {
        let (pass, pieces) = self.shared_pass();
        Tape { pass, pieces, is_first_run: true, ..Self::with_records(&self.device, self.mode, false) }
    }

    /// Returns whether any call of a first run has trained weights.
    pub(crate) fn has_weights(&self) -> bool {
        self.has_weights.get()
    }

    /// Creates a tape that records the second run of a segment whose first run made `calls` calls.
    pub(crate) fn replaying(device: &Device, (pass, pieces): SharedPass, calls: u32) -> Self {
        Tape { replayed: Some(calls), pass, pieces, ..Self::new(device, Mode::Recompute) }
    }

    fn with_records(device: &Device, mode: Mode, records: bool) -> Self {
        let id = NEXT_TAPE.fetch_add(1, Ordering::Relaxed);
        let device = device.clone();
        let pass = Rc::default();
        let (calls, begun, has_weights, replayed, graph) =
            (Cell::new(0), Cell::new(None), Cell::new(false), None, RefCell::default());
        let is_first_run = false;
        let pieces = Rc::from([]);
        let block = Cell::new(None);
        Tape {
            id,
            device,
            mode,
            pass,
            pieces,
            block,
            records,
            calls,
            begun,
            has_weights,
            is_first_run,
            replayed,
            graph,
        }
    }

    /// Number of operator calls so far.
    pub(crate) fn calls(&self) -> u32 {
        self.calls.get()
    }

    /// Returns whether the output of the current call will be read. False only for the last call of a
    /// recomputed segment, whose output was used in the first run. An operator whose rule does not save its
    /// output may then leave it uncomputed.
    pub fn reads_output(&self) -> bool {
        self.replayed.is_none_or(|calls| self.calls.get() + 1 < calls)
    }

    /// The device that operators run on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Purpose of the tape's pass.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The tape's pass, or the pass of the sequence piece that calls compute at present.
    pub fn pass(&self) -> &Pass {
        let piece = self.block.get().and_then(|block| self.pieces.get(block.piece?));
        piece.unwrap_or(&self.pass)
    }

    pub(crate) fn shared_pass(&self) -> SharedPass {
        (Rc::clone(&self.pass), Rc::clone(&self.pieces))
    }

    /// The local pieces, if sequences are computed in pieces.
    pub fn pieces(&self) -> Option<&Pieces> {
        self.pass.pieces.as_ref()
    }

    /// The block that calls compute at present; `None` outside [`map`](crate::map).
    pub(crate) fn block(&self) -> Option<BlockIndex> {
        self.block.get()
    }

    /// Runs `body`, whose operator calls compute `block`.
    pub(crate) fn within_block<T>(&self, block: BlockIndex, body: impl FnOnce() -> T) -> T {
        let before = self.block.replace(Some(block));
        let result = body();
        self.block.set(before);
        result
    }

    /// Returns whether operators are recorded and save tensors for backward. A layer's behaviour depends on
    /// [`Tape::mode`] instead.
    pub fn is_recording(&self) -> bool {
        self.records
    }

    /// Creates a variable without a gradient.
    pub fn constant(&self, tensor: Tensor) -> Var {
        Var::new(tensor, None)
    }

    /// Creates a variable whose gradient backward returns, for example a stage's input.
    pub fn leaf(&self, tensor: Tensor) -> Var {
        if !self.records {
            return self.constant(tensor);
        }
        let mut graph = self.graph.borrow_mut();
        let index = graph.values;
        graph.values += 1;
        graph.leaves.push(index);
        Var::new(tensor, Some(ValueId { tape: self.id, index }))
    }

    /// Lists the tensors that recorded rules keep alive.
    pub fn saved(&self) -> Vec<SavedBytes> {
        let graph = self.graph.borrow();
        let of_node = |node: &Node| {
            let module = node.module;
            let operator = node.rule.operator();
            let saved = node.rule.saved();
            saved
                .iter()
                .map(|s| SavedBytes { module, operator, name: s.name, bytes: s.tensor.bytes() })
                .collect()
        };
        graph.nodes.iter().flat_map(|node| -> Vec<SavedBytes> { of_node(node) }).collect()
    }

    /// Notifies the pass's observers that a call of `operator` begins; [`Tape::record`] ends it. Observers do
    /// not see operators that skip this call.
    ///
    /// # Errors
    /// Errors of an observer.
    pub fn begin(&self, operator: &'static str) -> Result<()> {
        let observers = &self.pass.observers;
        if !observers.is_empty() {
            self.begun.set(Some(operator));
        }
        observers.before(|| self.call(operator))
    }

    fn call(&self, operator: &'static str) -> Call {
        let direction = match self.mode {
            Mode::Recompute => Direction::Recompute,
            _ => Direction::Forward,
        };
        let module = self.device.current_module();
        let micro_batch = self.pass.micro_batch;
        Call { direction, module, operator, micro_batch, piece: self.pass.piece_number(self.block.get()) }
    }

    /// Notifies the observers that the current call was enqueued.
    fn end(&self, outputs: &[Tensor]) -> Result<()> {
        match self.begun.take() {
            Some(operator) => self.pass.observers.after(|| self.call(operator), outputs.iter().map(Some)),
            None => Ok(()),
        }
    }

    /// Records a call: `rule` computes the gradients of `inputs` from the gradients of `outputs`. A call
    /// without trained weights whose inputs have no gradients is not kept. Operators outside this crate use
    /// this function, too.
    ///
    /// # Errors
    /// An input is of another tape, or an observer failed.
    pub fn record<R: Rule + 'static>(
        &self,
        inputs: &[Source],
        outputs: Vec<Tensor>,
        rule: impl FnOnce() -> R,
    ) -> Result<Vec<Var>> {
        self.calls.set(self.calls.get() + 1);
        let wanted = inputs.iter().any(|input| input.id.is_some());
        if self.block.get().is_none() && inputs.iter().any(|input| input.is_divided) {
            return Err(AutogradError::Divided);
        }
        self.end(&outputs)?;
        if !self.records {
            if self.is_first_run && !self.has_weights.get() {
                self.has_weights.set(rule().has_weights());
            }
            return Ok(outputs.into_iter().map(|tensor| Var::new(tensor, None)).collect());
        }
        let rule = rule();
        if inputs.iter().any(|input| input.id.is_some_and(|id| id.tape != self.id)) {
            return Err(AutogradError::ForeignVariable { operator: rule.operator() });
        }
        if !wanted && !rule.has_weights() {
            return Ok(outputs.into_iter().map(|tensor| Var::new(tensor, None)).collect());
        }
        let mut graph = self.graph.borrow_mut();
        let first_output = graph.values;
        graph.values += outputs.len() as u32;
        graph.nodes.push(Node {
            rule: Box::new(rule),
            inputs: inputs.iter().map(|input| input.id.map(|id| id.index)).collect(),
            first_output,
            outputs: outputs.len() as u32,
            module: self.device.current_module(),
            block: self.block.get(),
        });
        let identify = |(index, tensor)| {
            Var::new(tensor, Some(ValueId { tape: self.id, index: first_output + index as u32 }))
        };
        Ok(outputs.into_iter().enumerate().map(identify).collect())
    }

    /// [`Tape::record`] for an operator with one output.
    pub fn record_one<R: Rule + 'static>(
        &self,
        inputs: &[Source],
        output: Tensor,
        rule: impl FnOnce() -> R,
    ) -> Result<Var> {
        let mut outputs = self.record(inputs, vec![output], rule)?;
        outputs.pop().ok_or(AutogradError::NotRecorded)
    }

    pub(crate) fn index_of(&self, source: Source) -> Result<u32> {
        match source.id {
            Some(id) if id.tape == self.id => Ok(id.index),
            Some(_) => Err(AutogradError::ForeignVariable { operator: "backward" }),
            None => Err(AutogradError::NotRecorded),
        }
    }
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.graph.borrow().nodes.len();
        f.debug_struct("Tape")
            .field("mode", &self.mode)
            .field("records", &self.records)
            .field("rules", &nodes)
            .finish()
    }
}
