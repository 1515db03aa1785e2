//! The server of a bucket, out of its `endpoint`.

use crate::secrets;

/// What to write instead of `endpoint`: a scheme, a host, perhaps a port, and nothing else.
pub(crate) fn check_endpoint(endpoint: &str) -> Result<(), String> {
    let Some(rest) = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://")) else {
        return Err("write \"https://host:port\", or http:// for a server without TLS".to_owned());
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains('@') {
        return Err(secrets::FIX.to_owned());
    }
    if authority.contains(['/', '?', '#']) {
        return Err("remove what follows the host and its port; bucket and prefix stand in url".to_owned());
    }
    // A literal IPv6 address has colons of its own, in brackets.
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host.parse::<std::net::Ipv6Addr>().is_ok(), port),
        None => {
            let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            (is_host(host), port)
        }
    };
    if host && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)) {
        return Ok(());
    }
    Err("write a host and a port of 1 to 65535: \"https://host:port\"".to_owned())
}

fn is_port(port: &str) -> bool {
    port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
}

fn is_host(host: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    (1..=253).contains(&host.len()) && host.bytes().all(legal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers() {
        for good in [
            "http://127.0.0.1:8333",
            "https://s3.eu-central-1.amazonaws.com",
            "https://h/",
            "http://[::1]:9000",
            "https://[::1]",
        ] {
            assert_eq!(check_endpoint(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "http://",
            "https:///",
            "host:80",
            "ftp://host",
            "http://host:",
            "http://host:0",
            "http://host:65536",
            "http://host:+80",
            "http://host/path",
            "http://host?x",
            "http://key:secret@host",
            "http://a b",
            "http://[::g]:1",
            "http://[::1]9",
            "http://::1",
        ] {
            assert!(check_endpoint(bad).is_err(), "{bad}");
        }
    }
}
