//! Model servers on this machine. Takes the places they usually listen at, gives those that answer and a model of each.
//! Only asked when nothing is configured, or when a person sets something up.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use decurion_config::Candidate;
use decurion_model::catalog;
use serde_json::Value;

/// A server that answered.
pub struct Local {
    /// Its name: `ollama`, `llama.cpp`.
    pub name: &'static str,
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
    find_all(candidates).into_iter().next()
}

/// All of these that answer with a list of models, in order; they are asked at the same time.
pub fn find_all(candidates: &[Candidate]) -> Vec<Local> {
    let ask = |candidate: &Candidate| {
        let (name, base_url) = (candidate.name, candidate.base_url.clone());
        Some(Local { name, model: first_model(&base_url)?, base_url })
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = candidates.iter().map(|candidate| scope.spawn(move || ask(candidate))).collect();
        asked.into_iter().filter_map(|asked| asked.join().ok().flatten()).collect()
    })
}

/// Where nothing answered, for people: ports of this machine.
pub fn ports(candidates: &[Candidate]) -> String {
    let port = |candidate: &Candidate| {
        let (_, rest) = candidate.base_url.split_once("://").unwrap_or_default();
        let place = rest.split('/').next().unwrap_or_default();
        place.strip_prefix("127.0.0.1:").unwrap_or(place).to_owned()
    };
    let ports: Vec<String> = candidates.iter().map(port).collect();
    format!("ports {}", ports.join(", "))
}

impl Local {
    /// What it is called in the settings.
    pub fn provider_name(&self) -> String {
        let letters = self.name.chars().filter(char::is_ascii_alphanumeric);
        letters.map(|letter| letter.to_ascii_lowercase()).collect()
    }
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
