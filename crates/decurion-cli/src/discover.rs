//! Model servers on this machine. Takes the places they usually listen at, gives the first that answers and
//! a model it has. Only asked when nothing is configured.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use decurion_config::Candidate;
use decurion_model::catalog;
use serde_json::Value;

/// A server that answered.
pub struct Local {
    /// Its name: `ollama`, `llama.cpp`.
    pub name: String,
    /// Where it is.
    pub base_url: String,
    /// A model it has.
    pub model: String,
}

/// How long a server on this machine may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest list of models that is read.
const MOST_BYTES: u64 = 1 << 20;

/// The first of these that answers with a list of models.
pub fn find(candidates: &[Candidate]) -> Option<Local> {
    candidates.iter().find_map(|candidate| {
        let model = first_model(&candidate.base_url)?;
        Some(Local { name: candidate.name.to_owned(), base_url: candidate.base_url.clone(), model })
    })
}

fn first_model(base_url: &str) -> Option<String> {
    let rest = base_url.strip_prefix("http://")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address: SocketAddr = host.to_socket_addrs().ok()?.find(|address| address.ip().is_loopback())?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let path = path.trim_end_matches('/');
    write!(stream, "GET /{path}/models HTTP/1.0\r\nHost: {host}\r\nAccept: application/json\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n")?;
    if !head.lines().next()?.contains(" 200") {
        return None;
    }
    // A server may send the body in chunks even to HTTP/1.0; the JSON is then between the sizes.
    let start = body.find('{')?;
    let end = body.rfind('}')?;
    let list: Value = serde_json::from_str(body.get(start..=end)?).ok()?;
    let ids = list["data"].as_array()?.iter().filter_map(|model| model["id"].as_str());
    let ids: Vec<String> = ids.map(str::to_owned).collect();
    catalog::conversational(&ids).first().map(|id| (*id).to_owned())
}
