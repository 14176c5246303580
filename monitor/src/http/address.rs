//! The address to listen on, as operators write it.

use std::net::SocketAddr;

/// Parses the value of an option such as `--listen`.
///
/// # Errors
/// It is not an address with a port. A port alone could mean this machine or everybody, so it is refused with both.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let is_port = text.parse::<u16>().is_ok();
        let (host, port) = text.rsplit_once(':').unwrap_or(if is_port { ("", text) } else { (text, "") });
        let example = port.parse().unwrap_or(9394_u16);
        let local = format!("127.0.0.1:{example} (this machine only)");
        let advice = match host {
            "localhost" => format!("did you mean {local}?"),
            "" | "*" => format!("did you mean {local}, or 0.0.0.0:{example} (every address of this machine)?"),
            _ => format!("such as {local}"),
        };
        format!("expected ADDRESS:PORT: {advice}")
    })
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn a_port_alone_is_refused_with_advice() {
        for text in ["127.0.0.1:9395", "[::1]:9395", "0.0.0.0:0"] {
            assert!(address(text).is_ok(), "{text}");
        }
        let both = "did you mean 127.0.0.1:9395 (this machine only), or 0.0.0.0:9395 (every address of this machine)?";
        for (text, advice) in [
            (":9395", both),
            ("9395", both),
            ("*:9395", both),
            ("localhost:9395", "did you mean 127.0.0.1:9395 (this machine only)?"),
            ("10.0.0.1", "such as 127.0.0.1:9394 (this machine only)"),
        ] {
            let error = address(text).unwrap_err();
            assert!(error.starts_with("expected ADDRESS:PORT: ") && error.contains(advice), "{text}: {error}");
        }
    }
}
