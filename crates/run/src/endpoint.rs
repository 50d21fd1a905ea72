//! The Prometheus endpoint of a run.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use config::RunConfig;
use telemetry::prometheus::Endpoint;

use crate::error::{Result, RunError};

/// Checks `telemetry.listen` before anything is allocated.
///
/// # Errors
/// The text is not an address; other hosts can reach the address and `telemetry.listen_publicly` is off; the
/// address is in use or belongs to another host.
pub(crate) fn check(config: &RunConfig) -> Result<()> {
    let Some(address) = address(config)? else { return Ok(()) };
    TcpListener::bind(address).map(drop).map_err(|error| refused(config, &error.to_string()))
}

/// Opens the endpoint for the run in `run_dir`; `None` if no address is configured.
pub(crate) fn open(config: &RunConfig, run_dir: &Path) -> Result<Option<Endpoint>> {
    let Some(address) = address(config)? else { return Ok(None) };
    let name = run_dir.file_name().unwrap_or(run_dir.as_os_str()).to_string_lossy();
    let endpoint = Endpoint::listen(address, &name);
    let endpoint = endpoint.map_err(|error| refused(config, &error.to_string()))?;
    tracing::info!("figures for Prometheus at http://{}/metrics", endpoint.address());
    Ok(Some(endpoint))
}

fn address(config: &RunConfig) -> Result<Option<SocketAddr>> {
    let text = config.telemetry.listen.as_str();
    if text.is_empty() {
        return Ok(None);
    }
    let address: SocketAddr =
        text.parse().map_err(|_| refused(config, "not an IP address with a port, such as 127.0.0.1:9400"))?;
    if !address.ip().is_loopback() && !config.telemetry.listen_publicly {
        let why = "other hosts can reach it; telemetry.listen_publicly = true allows that";
        return Err(refused(config, why));
    }
    Ok(Some(address))
}

fn refused(config: &RunConfig, why: &str) -> RunError {
    let origin = config.origins.find("telemetry.listen");
    let text = &config.telemetry.listen;
    RunError::Refused(format!("{origin}: telemetry.listen = {text:?}: {why}"))
}
