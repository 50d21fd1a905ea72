//! Training states kept in host memory during a run.

use checkpoint::{Contents, MemoryWriter, Snapshot};
use collective::ControlChannel;
use collective::tcp::copies::Receiver;
use telemetry::host_name;
use worker::{Setup, Worker};

use crate::answering::while_answering;
use crate::error::Result;
use crate::history::History;
use crate::memory_states;
use crate::neighbours;

/// Copies a rank's part of the training state to host memory.
#[derive(Debug)]
pub(crate) struct MemorySaver {
    writer: MemoryWriter,
    /// The snapshot whose copies have been enqueued.
    taken: Option<Snapshot>,
    /// Receives the neighbouring host's copies, on the first rank of this host.
    _receiver: Option<Receiver>,
    /// Whether this rank is the first of its host and publishes the host's states.
    is_first_of_host: bool,
    /// Whether a failure has been logged.
    is_reported: bool,
}

impl MemorySaver {
    /// Returns this rank's saver; `None` if the run keeps no states in memory, or no process restarts its
    /// job. `process` is the process id of rank 0 and `contents` comes from rank 0. Every rank must call
    /// this.
    ///
    /// # Errors
    /// The transport fails, or the host has no usable file system in memory.
    pub(crate) fn shared(
        setup: &Setup,
        (process, contents): (u32, Option<Contents>),
        control: &mut dyn ControlChannel,
    ) -> Result<Option<Self>> {
        if setup.config.checkpoint.memory_steps == 0 {
            return Ok(None);
        }
        let Some(directory) = memory_states::of_process() else {
            if control.rank() == 0 {
                tracing::warn!(
                    "checkpoint.memory_steps has no effect: nothing restarts this job (plimsoll \
                     launch)"
                );
            }
            return Ok(None);
        };
        memory_states::make(&directory)?;
        let host = host_name();
        let all = control.all_gather(host.as_bytes())?;
        let is_first_of_host = all.iter().position(|other| *other == host.as_bytes()) == Some(control.rank());
        let mut writer = MemoryWriter::new(&directory, process, contents);
        if is_first_of_host {
            writer.forget_after(setup.first_step())?;
        }
        let is_alone = all.iter().all(|other| *other == host.as_bytes());
        let receiver = match is_alone {
            true => None,
            false => neighbours::connect(&mut writer, (&host, is_first_of_host), control)?,
        };
        Ok(Some(MemorySaver {
            writer,
            taken: None,
            _receiver: receiver,
            is_first_of_host,
            is_reported: false,
        }))
    }

    /// Allocates this rank's memory for copies on a separate thread. Every rank must call this.
    pub(crate) fn prepare(&mut self, worker: &mut Worker) -> Result<()> {
        let bytes = worker.snapshot_bytes()?;
        let allocate = worker.device().host_memory();
        let memory = while_answering(worker.control(), (bytes > 0).then_some(move || allocate(bytes)))?;
        memory.into_iter().for_each(|memory| self.writer.set_memory(memory));
        Ok(())
    }

    /// Returns whether this rank's thread is still copying.
    pub(crate) fn is_working(&self) -> bool {
        self.writer.is_working()
    }

    /// Returns whether a state was begun but not yet published. All ranks return the same.
    pub(crate) fn is_unreported(&self) -> bool {
        self.writer.is_unreported()
    }

    /// Starts copying this rank's part of the state after `steps` steps. Does not wait for the device.
    pub(crate) fn take(&mut self, worker: &mut Worker, steps: u64) -> Result<()> {
        let mut snapshot = self.writer.begin();
        worker.take_snapshot(&mut snapshot, steps)?;
        self.taken = Some(snapshot);
        Ok(())
    }

    /// Starts writing the copied state with the losses of `history`; discards it if `history` is `None`.
    /// Every rank must call this.
    pub(crate) fn write(&mut self, history: Option<&History>) {
        let Some(mut snapshot) = self.taken.take() else { return };
        let Some(history) = history else { return self.writer.discard_snapshot(snapshot) };
        snapshot.set_losses(&history.losses);
        self.writer.write(snapshot, (history.steps, history.validations), history.norms.kept());
    }

    /// Publishes on every host the state that all ranks have finished writing. Every rank must call this.
    pub(crate) fn report(&mut self, control: &mut dyn ControlChannel) -> Result<()> {
        let (own, reported) = self.writer.report();
        let reports = control.gather(0, &own)?;
        let Some(reported) = reported else { return Ok(()) };
        let mut description = Vec::new();
        if let Some(reports) = reports {
            match self.writer.describe(&reported, &reports) {
                Ok(text) => description = text,
                Err(error) => self.warn(&error.to_string()),
            }
        }
        control.broadcast(0, &mut description)?;
        if description.is_empty() {
            self.writer.discard(&reported);
        } else if self.is_first_of_host
            && let Err(error) = self.writer.publish(&reported, &description)
        {
            self.writer.discard(&reported);
            self.warn(&error.to_string());
        }
        self.writer.end(reported);
        Ok(())
    }

    /// Logs, at most once, that a state was not kept.
    fn warn(&mut self, what: &str) {
        if !std::mem::replace(&mut self.is_reported, true) {
            tracing::warn!("a state is not kept in memory: {what}");
        }
    }
}
