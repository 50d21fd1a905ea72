//! The comparison of a run's plans with the memory of its devices.

use std::collections::BTreeSet;

use device::cuda;
use device::host::HostCapacity;
use serde_json::{Value, json};
use telemetry::Statistic;
use telemetry::units::{bytes, grouped};

use crate::host::{HostUse, RankForm, resident_bytes};
use crate::overhead::OverheadPart;
use crate::plan::Plan;
use crate::roles::Plans;
use worker::{Placement, Setup};

/// A limit on the bytes that a rank may reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The setting that imposes the limit.
    pub setting: &'static str,
    /// The limit in bytes.
    pub bytes: u64,
}

impl Limit {
    /// Returns the limit of a run, if any.
    fn of(setup: &Setup) -> Option<Self> {
        let total = setup.placement.description().total_bytes as f64;
        let fraction = setup.device.settings.per_process_memory_fraction;
        let share = (fraction < 1.0).then_some(Limit {
            setting: "per_process_memory_fraction of memory.allocator",
            bytes: (fraction * total) as u64,
        });
        let limit = setup.device.limit_bytes.map(|bytes| Limit { setting: "memory.limit_bytes", bytes });
        // A limit in bytes overrides a fraction.
        limit.or(share)
    }
}

/// Host memory that runs with offloaded state need and this host lacks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLack {
    /// Bytes that the processes on this host need.
    pub needs: u64,
    /// Bytes of them that are offloaded from devices.
    pub offloaded: u64,
    /// Bytes that the host has.
    pub capacity: u64,
}

impl HostLack {
    /// Returns what this host lacks for GPUs of it; `None` if it suffices, nothing is offloaded, or the run
    /// is planned for another host.
    fn of(setup: &Setup, host: &HostUse, form: RankForm) -> Option<Self> {
        let Placement::Cuda(_) = setup.placement else { return None };
        let processes = match form {
            RankForm::Threads => 1,
            RankForm::Processes { .. } => {
                let gpus = cuda::availability().map_or(1, |gpus| gpus.len());
                setup.config.world_size().min(gpus) as u64
            }
        };
        let [needs, offloaded] = [host.bytes(), host.offloaded()].map(|each| each.saturating_mul(processes));
        let capacity = HostCapacity::of_process().bytes;
        (offloaded > 0 && needs > capacity).then_some(HostLack { needs, offloaded, capacity })
    }

    fn in_words(self) -> String {
        let HostLack { needs, offloaded, capacity } = self;
        format!(
            "its processes need {} bytes of host memory ({}) of {} ({}), {} of them for what is offloaded, as \
             optim.offload, memory.offload_weights and memory.offload say",
            grouped(needs),
            bytes(needs),
            grouped(capacity),
            bytes(capacity),
            bytes(offloaded)
        )
    }
}

/// Memory that the processes of several ranks share: a host's, or that of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Name of the host.
    pub host: String,
    /// Bytes of the memory.
    pub bytes: u64,
    /// Whether a control group sets the limit, and not the machine.
    pub is_of_group: bool,
    /// The ranks, in ascending order.
    pub ranks: Vec<usize>,
}

/// The memory that the rank with the highest peak needs and has, in bytes.
#[derive(Clone, Debug)]
pub struct Fit {
    /// Total memory of the device.
    pub capacity: u64,
    /// Memory of the device that the allocator cannot use, part by part.
    pub overhead: Vec<OverheadPart>,
    /// The limit that the configuration sets, if any.
    pub limit: Option<Limit>,
    /// The rank with the highest peak.
    pub rank: usize,
    /// Bytes that the rank reserves on its device, or all ranks that share a GPU; on the CPU, those that are
    /// resident, of all ranks that share the host and with the host's part.
    pub needs: u64,
    /// Bytes that the rank reserves at its peak.
    pub most: u64,
    /// The limit on the host's memory, if the ranks compute there and it is less than the machine's.
    pub bounded_by: Option<&'static str>,
    /// Host memory of a process besides its allocators'; part of `needs` if ranks compute on the host.
    pub host: HostUse,
    /// Bytes that this host has and those that its processes need, if GPUs of it offload something.
    pub host_lack: Option<HostLack>,
    /// Number of ranks that share the device.
    pub shared_by: usize,
    /// The host that they share, if the job has several.
    pub on: Option<String>,
    /// The memories that processes share.
    pub shared: Vec<SharedMemory>,
    /// The form of the ranks.
    pub form: RankForm,
    /// Whether all ranks fit.
    pub fits: bool,
    /// Whether a rank fits only if its allocator releases cached memory and retries.
    pub retries: bool,
}

impl Fit {
    /// Compares the plans of a run with `setup`'s devices. On the CPU, the ranks share the host's memory if
    /// they are threads of one process.
    pub fn of(setup: &Setup, plans: &Plans, mut overhead: Vec<OverheadPart>, form: RankForm) -> Self {
        let description = setup.placement.description();
        let largest = plans.largest();
        let most = largest.map_or(0, |plan| plan.statistics.peak_reserved());
        let on_host = description.kind == device::Kind::Cpu;
        let host = HostUse::of(setup, plans, form);
        let beside = if on_host { host.bytes() } else { 0 };
        let resident = |plan: &Plan| resident_bytes(setup, plan);
        let sum = |of: &dyn Fn(&Plan) -> u64| {
            let all = plans.by_rank().map(|(_, plan)| of(plan)).fold(0, u64::saturating_add);
            (plans.world_size(), all)
        };
        let (shared_by, held) = match form == RankForm::Threads && on_host {
            true => sum(&resident),
            false if on_host => (1, plans.roles().iter().map(resident).max().unwrap_or(0)),
            false if setup.config.parallel.shares_gpu() => sum(&|plan| plan.statistics.peak_reserved()),
            false => (1, most),
        };
        let needs = held.saturating_add(beside);
        let capacity = description.total_bytes;
        if !on_host {
            let of = |plan: &Plan| plan.counters.get(Statistic::PeakHostReservedBytes);
            let pinned = if setup.config.parallel.shares_gpu() { sum(&of).1 } else { largest.map_or(0, of) };
            overhead.retain(|part| !part.is_of_pinned());
            overhead.extend(Some(OverheadPart::of_pinned(pinned)).filter(|part| part.bytes > 0));
        }
        let taken = overhead.iter().map(|part| part.bytes).sum();
        let process = HostCapacity::of_process();
        let host_lack = HostLack::of(setup, &host, form);
        let bounded_by = process.limit.filter(|_| on_host && process.bytes == capacity);
        Fit {
            capacity,
            overhead,
            limit: Limit::of(setup),
            rank: largest.map_or(0, |plan| plan.rank),
            needs,
            most,
            bounded_by,
            shared_by,
            on: None,
            shared: Vec::new(),
            form,
            fits: plans.fit()
                && host_lack.is_none()
                && (!on_host && shared_by == 1 || needs <= capacity.saturating_sub(taken)),
            host,
            host_lack,
            retries: plans.roles().iter().any(|plan| plan.statistics.num_alloc_retries > 0),
        }
    }

    /// Compares also what the processes of each host need together on the CPU with the memories that they
    /// `shared`. The figures are those of the one that is nearest to its limit, if several ranks share one.
    #[must_use]
    pub fn in_shared(mut self, setup: &Setup, plans: &Plans, shared: Vec<SharedMemory>) -> Self {
        let RankForm::Processes { mpi } = self.form else { return self };
        let hosts = shared.iter().map(|memory| &memory.host).collect::<BTreeSet<_>>().len();
        for memory in shared.iter().filter(|memory| memory.ranks.len() > 1) {
            let host = HostUse::of_processes(setup, plans, (&memory.ranks, mpi));
            let own = plans.by_rank().filter(|(rank, _)| memory.ranks.contains(rank));
            let held = own.map(|(_, plan)| resident_bytes(setup, plan)).fold(0, u64::saturating_add);
            let needs = held.saturating_add(host.bytes());
            self.fits &= needs <= memory.bytes;
            let is_nearer = needs as f64 / memory.bytes as f64 >= self.needs as f64 / self.capacity as f64;
            if self.shared_by == 1 || is_nearer {
                (self.needs, self.capacity, self.host) = (needs, memory.bytes, host);
                self.bounded_by = memory.is_of_group.then_some("their control group");
                self.shared_by = memory.ranks.len();
                self.on = (hosts > 1).then(|| memory.host.clone());
            }
        }
        Fit { shared, ..self }
    }

    /// Bytes of the device that its ranks' allocators can use.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.capacity.saturating_sub(self.overhead.iter().map(|part| part.bytes).sum())
    }

    /// The configuration's limit, if it is the reason why the run does not fit.
    #[must_use]
    pub fn broken_limit(&self) -> Option<Limit> {
        self.limit.filter(|limit| !self.fits && limit.bytes < self.most)
    }

    /// Returns a clause with the needed and available bytes.
    #[must_use]
    pub fn figures(&self) -> String {
        if let Some(lack) = self.host_lack.filter(|_| self.needs <= self.available()) {
            return lack.in_words();
        }
        let who = match self.shared_by {
            1 => format!("rank {} needs", self.rank),
            ranks => {
                let on = self.on.as_ref().map_or_else(String::new, |host| format!(" on {host}"));
                format!("its {ranks} ranks{on} together need")
            }
        };
        let taken: u64 = self.overhead.iter().map(|part| part.bytes).sum();
        let less = match taken {
            0 => String::new(),
            taken => format!(" less {} for {}", bytes(taken), self.overhead_words()),
        };
        let bound = self.bounded_by.map_or_else(String::new, |limit| format!(", the limit of {limit}"));
        format!(
            "{who} {} bytes ({}) of {} ({}){bound}{less}",
            grouped(self.needs),
            bytes(self.needs),
            grouped(self.capacity),
            bytes(self.capacity)
        )
    }

    /// Returns the overhead in words, as in `context, modules and connections, assumed`.
    fn overhead_words(&self) -> String {
        let words: Vec<_> = self.overhead.iter().map(|part| part.words()).collect();
        let joined = match words.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} and {last}", others.join(", ")),
            None => String::new(),
        };
        let basis = match self.overhead.iter().filter(|part| part.measured).count() {
            0 => "assumed",
            all if all == self.overhead.len() => "measured",
            _ => "partly assumed",
        };
        format!("{joined}, {basis}")
    }

    /// Returns the figures under the keys of `plimsoll plan --json`.
    pub fn to_json(&self) -> Value {
        json!({
            "fits": self.fits,
            "capacity_bytes": self.capacity,
            "overhead": self.overhead,
            "available_bytes": self.available(),
            "limit_bytes": self.limit.map(|limit| limit.bytes),
            "ranks_on_a_device": self.shared_by,
            "needs_bytes": self.needs,
            "host": self.host.to_json(),
            "with_retries": self.retries,
        })
    }
}

impl std::fmt::Display for Fit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let available = self.available();
        let verdict = if self.fits { "fits" } else { "does not fit" };
        write!(f, "{verdict}: {}", self.figures())?;
        if self.fits {
            let free = available.saturating_sub(self.needs);
            write!(f, ", so {} stay free", bytes(free))?;
        }
        if self.fits && self.retries {
            write!(f, "; its allocator must release cached memory and retry, which takes time")?;
        }
        if let Some(Limit { setting, bytes }) = self.broken_limit() {
            write!(f, "; {setting} leaves it {}", grouped(bytes))?;
        }
        Ok(())
    }
}
