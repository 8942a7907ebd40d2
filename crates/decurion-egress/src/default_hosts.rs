//! Hosts that builds commonly need. Takes nothing, gives patterns for [`crate::HostRules::new`].

/// Hosts from which the usual package managers download, for settings that name no hosts themselves.
///
/// Only hosts that hand out packages to everybody are listed. Hosts to which a command could also send data under an
/// account, such as `github.com` itself or its API, are left out: a person allows those. Even a download host learns the
/// names that a command asks for, so the list bounds what can leave the sandbox and does not bring it to zero.
pub const DEFAULT_HOSTS: &[&str] = &[
    // Rust
    "crates.io",
    "index.crates.io",
    "static.crates.io",
    "static.rust-lang.org",
    // JavaScript
    "registry.npmjs.org",
    "registry.npmjs.com",
    "registry.yarnpkg.com",
    "repo.yarnpkg.com",
    "nodejs.org",
    "jsr.io",
    "npm.jsr.io",
    "dl.deno.land",
    // Python
    "pypi.org",
    "files.pythonhosted.org",
    "pypi.python.org",
    "repo.anaconda.com",
    "conda.anaconda.org",
    // Go
    "proxy.golang.org",
    "sum.golang.org",
    "go.dev",
    "dl.google.com",
    // Ruby
    "rubygems.org",
    "index.rubygems.org",
    // Java
    "repo.maven.apache.org",
    "repo1.maven.org",
    "plugins.gradle.org",
    "services.gradle.org",
    "downloads.gradle.org",
    // PHP, .NET, Dart, Elixir, Haskell
    "packagist.org",
    "repo.packagist.org",
    "api.nuget.org",
    "pub.dev",
    "hex.pm",
    "repo.hex.pm",
    "hackage.haskell.org",
    // Linux distributions
    "deb.debian.org",
    "security.debian.org",
    "ftp.debian.org",
    "archive.ubuntu.com",
    "security.ubuntu.com",
    "ports.ubuntu.com",
    "dl-cdn.alpinelinux.org",
    // Downloads of GitHub: source archives, raw files, release files
    "codeload.github.com",
    "raw.githubusercontent.com",
    "objects.githubusercontent.com",
    "release-assets.githubusercontent.com",
];

#[cfg(test)]
mod tests {
    use super::DEFAULT_HOSTS;
    use crate::rules::HostRules;

    #[test]
    fn every_default_host_is_a_pattern_and_stands_once() {
        HostRules::new(DEFAULT_HOSTS.iter().copied(), [], false).unwrap();
        for (index, host) in DEFAULT_HOSTS.iter().enumerate() {
            assert!(!DEFAULT_HOSTS[..index].contains(host), "{host}");
        }
    }
}
