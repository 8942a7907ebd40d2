//! The proxy's task. Takes a listener, gives a handle; while the handle lives, connections are accepted and served.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::connection::{Dial, ProxyLimits, ProxyShared, SystemDialer, serve};
use crate::gate::Gate;
use crate::masking::Masked;
use crate::record::Recorder;

/// A running proxy. Dropping it ends all its connections.
#[derive(Debug)]
pub struct Proxy {
    task: JoinHandle<()>,
    port: u16,
}

/// What a proxy is made of.
pub struct ProxyParts {
    pub gate: Arc<Gate>,
    /// Receives a record of each connection.
    pub recorder: Arc<dyn Recorder>,
    /// Opens connections to servers.
    pub dialer: Arc<dyn Dial>,
    pub limits: ProxyLimits,
    /// Secrets that requests may carry.
    pub masked: Option<Arc<Masked>>,
}

impl ProxyParts {
    /// A proxy that connects directly, with the usual bounds.
    pub fn new(gate: Arc<Gate>, recorder: Arc<dyn Recorder>) -> Self {
        Self { gate, recorder, dialer: Arc::new(SystemDialer), limits: ProxyLimits::default(), masked: None }
    }
}

impl Proxy {
    /// Starts to accept on the listener, which may belong to another network namespace. Needs a tokio runtime.
    pub fn start(listener: TcpListener, parts: ProxyParts) -> io::Result<Self> {
        let port = listener.local_addr()?.port();
        let ProxyParts { gate, recorder, dialer, limits, masked } = parts;
        let shared = Arc::new(ProxyShared { gate, dialer, recorder, limits, masked });
        Ok(Self { task: tokio::spawn(accept(listener, shared)), port })
    }

    /// The port on which the proxy listens.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The task owns the tasks of the connections, which end with it.
        self.task.abort();
    }
}

/// Accepts for ever. Beyond the most connections, clients wait in the queue of the system.
async fn accept(listener: TcpListener, shared: Arc<ProxyShared>) {
    let slots = Arc::new(Semaphore::new(shared.limits.connections));
    let mut connections = JoinSet::new();
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let stream = next_client(&listener).await;
        // Finished connections are forgotten here; at most as many as there are slots wait for it.
        while connections.try_join_next().is_some() {}
        let shared = shared.clone();
        connections.spawn(async move {
            serve(shared, stream).await;
            drop(slot);
        });
    }
}

async fn next_client(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // Too many open files, most likely: some will be closed.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
