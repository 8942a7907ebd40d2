//! How commands learn of the proxy. Takes its port and an agent's token, gives variables to set.

/// Variables that lead the usual programs through the proxy.
///
/// The token is the user name. The password is never looked at, but there is one: Python's `requests` and `PySocks` send
/// no user name without a password, and git asks for one.
pub fn environment(port: u16, token: &str) -> Vec<(&'static str, String)> {
    let http = format!("http://{token}:x@127.0.0.1:{port}");
    let socks = format!("socks5h://{token}:x@127.0.0.1:{port}");
    let direct = "localhost,127.0.0.1,::1".to_owned();
    let mut variables = Vec::new();
    // curl and wget read HTTP_PROXY in lower case only; others prefer upper case.
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"] {
        variables.push((name, http.clone()));
    }
    for name in ["ALL_PROXY", "all_proxy"] {
        variables.push((name, socks.clone()));
    }
    for name in ["NO_PROXY", "no_proxy"] {
        variables.push((name, direct.clone()));
    }
    // cargo prefers a proxy in its own settings to the variables above; yarn 2 and later do not read them.
    for name in ["CARGO_HTTP_PROXY", "YARN_HTTP_PROXY", "YARN_HTTPS_PROXY"] {
        variables.push((name, http.clone()));
    }
    // Node's own fetch reads the variables only if asked to.
    variables.push(("NODE_USE_ENV_PROXY", "1".to_owned()));
    // Without this, git tries each request without a user name first.
    variables.push(("GIT_HTTP_PROXY_AUTHMETHOD", "basic".to_owned()));
    variables
}
