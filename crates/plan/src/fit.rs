//! Compares a run's plans with the memory of its devices.

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
    /// Returns the run's limit, if it has one.
    fn from_setup(setup: &Setup) -> Option<Self> {
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

/// A shortage of host memory on this host in a run that offloads tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLack {
    /// Host bytes that the processes on this host need.
    pub needs: u64,
    /// The bytes among them that are offloaded from devices.
    pub offloaded: u64,
    /// Bytes of the host's memory.
    pub capacity: u64,
}

impl HostLack {
    /// Returns the shortage on this host; `None` if its memory suffices, nothing is offloaded, or the run is
    /// planned for another host.
    fn from_setup(setup: &Setup, host: &HostUse, form: RankForm) -> Option<Self> {
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

/// Host memory that several ranks' processes share: a machine's, or a control group's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Name of the host.
    pub host: String,
    /// Bytes of the memory.
    pub bytes: u64,
    /// Whether a control group, not the machine, sets the limit.
    pub is_of_group: bool,
    /// Ranks that share the memory, in ascending order.
    pub ranks: Vec<usize>,
}

/// Compares the memory that the rank with the highest peak needs with the memory that it has.
#[derive(Clone, Debug)]
pub struct Fit {
    /// Total memory of the device.
    pub capacity: u64,
    /// Memory of the device that the allocator cannot use, by cause.
    pub overhead: Vec<OverheadPart>,
    /// The configuration's limit on reserved bytes, if any.
    pub limit: Option<Limit>,
    /// The rank with the highest peak.
    pub rank: usize,
    /// Bytes that the rank reserves on its device; for a shared GPU, the sum over its ranks. On the CPU,
    /// resident bytes of all ranks that share the host, including process overhead.
    pub needs: u64,
    /// Peak bytes that the rank's allocator reserves.
    pub most: u64,
    /// Name of the limit on host memory, if ranks compute on the CPU and it is below the machine's memory.
    pub bounded_by: Option<&'static str>,
    /// Host memory of a process outside its allocators; included in `needs` if ranks compute on the CPU.
    pub host: HostUse,
    /// Shortage of host memory, if this host's GPUs offload to it.
    pub host_lack: Option<HostLack>,
    /// Number of ranks that share the device or host memory.
    pub shared_by: usize,
    /// Name of the host that they share, if the job has several hosts.
    pub on: Option<String>,
    /// Host memories that several processes share.
    pub shared: Vec<SharedMemory>,
    /// Whether ranks are threads or processes.
    pub form: RankForm,
    /// Whether all ranks fit.
    pub fits: bool,
    /// Whether some rank fits only because its allocator frees cached memory and retries.
    pub retries: bool,
}

impl Fit {
    /// Compares the plans of a run with `setup`'s devices. On the CPU, ranks that are threads of one process
    /// share the host's memory.
    pub fn from_plans(setup: &Setup, plans: &Plans, mut overhead: Vec<OverheadPart>, form: RankForm) -> Self {
        let description = setup.placement.description();
        let largest = plans.largest();
        let most = largest.map_or(0, |plan| plan.statistics.peak_reserved());
        let on_host = description.kind == device::Kind::Cpu;
        let host = HostUse::from_plans(setup, plans, form);
        let beside = if on_host { host.bytes() } else { 0 };
        let resident = |plan: &Plan| resident_bytes(setup, plan);
        let sum = |bytes_of_plan: &dyn Fn(&Plan) -> u64| {
            let all = plans.by_rank().map(|(_, plan)| bytes_of_plan(plan)).fold(0, u64::saturating_add);
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
            let bytes_of_plan = |plan: &Plan| plan.counters.get(Statistic::PeakHostReservedBytes);
            let pinned = if setup.config.parallel.shares_gpu() {
                sum(&bytes_of_plan).1
            } else {
                largest.map_or(0, bytes_of_plan)
            };
            overhead.retain(|part| !part.is_of_pinned());
            overhead.extend(Some(OverheadPart::of_pinned(pinned)).filter(|part| part.bytes > 0));
        }
        let taken = overhead.iter().map(|part| part.bytes).sum();
        let process = HostCapacity::of_process();
        let host_lack = HostLack::from_setup(setup, &host, form);
        let bounded_by = process.limit.filter(|_| on_host && process.bytes == capacity);
        Fit {
            capacity,
            overhead,
            limit: Limit::from_setup(setup),
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

    /// On the CPU, also compares the combined needs of each host's processes with the memory that they share.
    /// If several ranks share a memory, the reported figures are of the memory closest to its limit.
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

    /// Returns the bytes of the device that its ranks' allocators can use.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.capacity.saturating_sub(self.overhead.iter().map(|part| part.bytes).sum())
    }

    /// Returns the configuration's limit if it is the reason why the run does not fit.
    #[must_use]
    pub fn broken_limit(&self) -> Option<Limit> {
        self.limit.filter(|limit| !self.fits && limit.bytes < self.most)
    }

    /// Describes the needed and available bytes as a clause.
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

    /// Describes the causes of the overhead, as in `context, modules and connections, assumed`.
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

    /// Returns the result as in `plimsoll plan --json`.
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
