//! Load of a GPU from NVIDIA's management library (NVML), opened at run time. Hosts without the library have
//! no readings.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};
use system::threads;

/// Time between two readings.
const PERIOD: Duration = Duration::from_secs(1);

/// The load of a GPU. Values that the GPU does not report are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuLoad {
    /// Percentage of the last sampling period in which a kernel ran.
    pub utilization_percent: Option<u32>,
    /// Power draw.
    pub power_watts: Option<u32>,
    /// Power limit.
    pub power_limit_watts: Option<u32>,
    /// Clock of the multiprocessors.
    pub clock_mhz: Option<u32>,
    /// Highest clock of the multiprocessors.
    pub max_clock_mhz: Option<u32>,
    /// Temperature of the GPU.
    pub temperature_celsius: Option<u32>,
    /// Reasons why the clock is reduced, such as `power cap`; empty if it is not.
    pub throttled: Vec<String>,
}

/// Reasons for reduced clocks that are reported. Idle GPUs and clocks set by a user are left out.
const REASONS: [(ThrottleReasons, &str); 5] = [
    (ThrottleReasons::SW_POWER_CAP, "power cap"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "temperature"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "temperature limit"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
];

impl GpuLoad {
    fn read(gpu: &Device<'_>) -> Self {
        let watts = |milliwatts: u32| milliwatts.div_ceil(1000);
        let throttled = gpu.current_throttle_reasons().unwrap_or(ThrottleReasons::NONE);
        let named = REASONS.iter().filter(|(reason, _)| throttled.contains(*reason));
        GpuLoad {
            utilization_percent: gpu.utilization_rates().ok().map(|rates| rates.gpu),
            power_watts: gpu.power_usage().ok().map(watts),
            power_limit_watts: gpu.enforced_power_limit().ok().map(watts),
            clock_mhz: gpu.clock_info(Clock::SM).ok(),
            max_clock_mhz: gpu.max_clock_info(Clock::SM).ok(),
            temperature_celsius: gpu.temperature(TemperatureSensor::Gpu).ok(),
            throttled: named.map(|(_, name)| (*name).to_owned()).collect(),
        }
    }
}

/// Reads the energy that a GPU has used.
#[derive(Debug)]
pub struct EnergyCounter {
    nvml: Nvml,
    uuid: String,
}

impl EnergyCounter {
    /// Opens the counter of the GPU with this UUID; `None` without NVML.
    #[must_use]
    pub fn open(uuid: &str) -> Option<Self> {
        Nvml::init().ok().map(|nvml| EnergyCounter { nvml, uuid: uuid.to_owned() })
    }

    /// Returns the joules used since the driver was loaded; `None` if the GPU does not count them.
    #[must_use]
    pub fn joules(&self) -> Option<f64> {
        let gpu = self.nvml.device_by_uuid(self.uuid.as_str()).ok()?;
        gpu.total_energy_consumption().ok().map(|millijoules| millijoules as f64 / 1e3)
    }
}

/// Reads the load of a GPU every second on its own thread, so that no step waits for NVML. Dropping it ends
/// the thread.
#[derive(Debug)]
pub struct GpuMonitor {
    latest: Arc<Mutex<Option<GpuLoad>>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl GpuMonitor {
    /// Starts reading the GPU with this UUID, such as `GPU-8f6c…`. There are no readings without NVML or the
    /// GPU; returns `None` if no thread can be started.
    pub fn start(uuid: &str) -> Option<Self> {
        let uuid = uuid.to_owned();
        let latest = Arc::new(Mutex::new(None));
        let (stop, stopped) = channel::<()>();
        let shared = Arc::clone(&latest);
        let read = move || {
            // Opening the library takes most of a second; start-up does not wait for it.
            let Ok(nvml) = Nvml::init() else { return };
            let Ok(gpu) = nvml.device_by_uuid(uuid.as_str()) else { return };
            loop {
                let load = GpuLoad::read(&gpu);
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(load);
                if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = threads::spawn("gpu-load", read).ok()?;
        Some(GpuMonitor { latest, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the latest reading; `None` before the first.
    pub fn latest(&self) -> Option<GpuLoad> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for GpuMonitor {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A reading takes milliseconds; its panic concerns no step.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_is_not_there_has_no_load() {
        let mut monitor = GpuMonitor::start("GPU-00000000-0000-0000-0000-000000000000").unwrap();
        monitor.thread.take().unwrap().join().unwrap();
        assert_eq!(monitor.latest(), None);
    }
}
