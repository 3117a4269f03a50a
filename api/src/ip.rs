//! IP expressions: `192.168.1.*:90`, `192.168.1.1-63:90`, `10.0.0.0/8`, `234e:0:4567::3d:*`.
//!
//! ```text
//! expression = "*" | "*.*.*.*"                    any address, any port
//!            | "0.0.0.0:" port                    any address, this port
//!            | v4 [ ":" port ]                    four parts: number, "*" or "from-to"
//!            | v6 | "[" v6 "]" [ ":" port ]       an address, or eight parts as above, in hex
//!            | address "/" bits                   a block; of any port
//! ```
//!
//! Parsed once; matching does not allocate and never fails. No name is ever resolved: a host that
//! is no IP address meets only the expressions of any address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest text of an expression, in bytes.
pub const MAX_TEXT: usize = 128;

/// Why a text is no IP expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}; {hint}")]
pub struct IpError {
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: &'static str,
}

impl IpError {
    fn new(message: impl Into<String>) -> Self {
        let hint = "write an address, 192.168.1.*, 192.168.1.1-63 or 192.168.1.0/24, \
                    with :port where a port is meant";
        Self { message: message.into(), hint }
    }
}

/// A parsed expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IpExpr {
    host: Host,
    /// `None`: any.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Host {
    Any,
    /// Smallest and largest value of each part.
    V4([(u8, u8); 4]),
    V6([(u16, u16); 8]),
    /// Addresses that begin with these bits.
    Block(IpAddr, u32),
}

impl IpExpr {
    /// Reads an expression.
    ///
    /// ```
    /// use rulecast_api::ip::IpExpr;
    /// let expression = IpExpr::parse("192.168.1.1-63:90").unwrap();
    /// assert!(expression.matches("192.168.1.7", Some(90)));
    /// assert!(!expression.matches("192.168.1.7", Some(91)));
    /// assert!(!expression.matches("no address", Some(90)));
    /// ```
    pub fn parse(text: &str) -> Result<Self, IpError> {
        let text = text.trim();
        if text.len() > MAX_TEXT {
            return Err(IpError::new(format!("{} bytes are too long", text.len())));
        }
        if matches!(text, "*" | "*.*.*.*") {
            return Ok(Self { host: Host::Any, port: None });
        }
        if let Some((address, bits)) = text.split_once('/') {
            return block(address, bits);
        }
        let (host, port) = split(text);
        let port = match port {
            None => None,
            Some(port) => Some(
                number(port, u32::from(u16::MAX), 10)
                    .ok_or_else(|| IpError::new(format!("\"{port}\" is no port")))?
                    as u16,
            ),
        };
        let host = match host {
            "0.0.0.0" | "*" if port.is_some() => Host::Any,
            _ if host.contains(':') => v6(host)?,
            _ => v4(host)?,
        };
        Ok(Self { host, port })
    }

    /// Whether it stands for this host and port. A port that is not known meets only
    /// expressions without one.
    pub fn matches(&self, host: &str, port: Option<u16>) -> bool {
        self.matches_ip(ip(host), port)
    }

    /// As [`IpExpr::matches`], for a host that is parsed already; `None`: no IP address.
    pub fn matches_ip(&self, host: Option<IpAddr>, port: Option<u16>) -> bool {
        if self.port.is_some() && self.port != port {
            return false;
        }
        match (&self.host, host) {
            (Host::Any, _) => true,
            (Host::V4(parts), Some(IpAddr::V4(ip))) => {
                parts.iter().zip(ip.octets()).all(|(&(from, to), n)| from <= n && n <= to)
            }
            (Host::V6(parts), Some(IpAddr::V6(ip))) => {
                parts.iter().zip(ip.segments()).all(|(&(from, to), n)| from <= n && n <= to)
            }
            (Host::Block(IpAddr::V4(network), bits), Some(IpAddr::V4(ip))) => {
                let shift = 32 - bits;
                let (a, b) = (u32::from(*network), u32::from(ip));
                a.checked_shr(shift).unwrap_or(0) == b.checked_shr(shift).unwrap_or(0)
            }
            (Host::Block(IpAddr::V6(network), bits), Some(IpAddr::V6(ip))) => {
                let shift = 128 - bits;
                let (a, b) = (u128::from(*network), u128::from(ip));
                a.checked_shr(shift).unwrap_or(0) == b.checked_shr(shift).unwrap_or(0)
            }
            _ => false,
        }
    }

    /// The one address that it stands for.
    fn single(&self) -> Option<IpAddr> {
        match &self.host {
            Host::V4(parts) if parts.iter().all(|(from, to)| from == to) => {
                Some(IpAddr::from(parts.map(|(n, _)| n)))
            }
            Host::V6(parts) if parts.iter().all(|(from, to)| from == to) => {
                Some(IpAddr::from(parts.map(|(n, _)| n)))
            }
            _ => None,
        }
    }

    /// Whether it says nothing of the address.
    pub fn is_any_host(&self) -> bool {
        self.host == Host::Any
    }
}

/// Many expressions. Single addresses, the most usual, are found without looking at each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    /// Sorted.
    single: Vec<(IpAddr, Option<u16>)>,
    others: Vec<IpExpr>,
}

impl AddressSet {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.single.is_empty() && self.others.is_empty()
    }

    /// Whether one of them stands for this host and port, as [`IpExpr::matches_ip`].
    pub fn matches_ip(&self, host: Option<IpAddr>, port: Option<u16>) -> bool {
        let single =
            |port| host.is_some_and(|host| self.single.binary_search(&(host, port)).is_ok());
        single(None)
            || port.is_some() && single(port)
            || self.others.iter().any(|expression| expression.matches_ip(host, port))
    }
}

impl FromIterator<IpExpr> for AddressSet {
    fn from_iter<I: IntoIterator<Item = IpExpr>>(expressions: I) -> Self {
        let mut set = Self::default();
        for expression in expressions {
            match expression.single() {
                Some(address) => set.single.push((address, expression.port)),
                None => set.others.push(expression),
            }
        }
        set.single.sort_unstable();
        set.single.dedup();
        set
    }
}

/// An IP address as hosts are written: with or without brackets; IPv4 inside of IPv6 is IPv4.
pub fn ip(host: &str) -> Option<IpAddr> {
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}

/// Splits `host`, `host:port`, `[host]`, `[host]:port` and bare IPv6 into host, without brackets,
/// and port as text.
pub fn split(address: &str) -> (&str, Option<&str>) {
    if let Some((host, rest)) = address.strip_prefix('[').and_then(|a| a.split_once(']')) {
        return match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => (address, None),
        };
    }
    match address.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, Some(port)),
        _ => (address, None),
    }
}

fn block(address: &str, bits: &str) -> Result<IpExpr, IpError> {
    let address = ip(address)
        .ok_or_else(|| IpError::new(format!("\"{address}\" is no address of a block")))?;
    // A port is read over: a block is of any port.
    let bits = match bits.split_once(':') {
        Some((bits, port)) if number(port, u32::from(u16::MAX), 10).is_some() => bits,
        _ => bits,
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = number(bits, most, 10)
        .ok_or_else(|| IpError::new(format!("\"{bits}\" is no number of bits up to {most}")))?;
    Ok(IpExpr { host: Host::Block(address, bits), port: None })
}

fn v4(host: &str) -> Result<Host, IpError> {
    // The usual form, read fast.
    if let Ok(ip) = host.parse::<Ipv4Addr>() {
        return Ok(Host::V4(ip.octets().map(|n| (n, n))));
    }
    let mut parts = [(0, 0); 4];
    let mut count = 0;
    for text in host.split('.') {
        let part = part(text, 255, 10)?;
        if let Some(place) = parts.get_mut(count) {
            *place = (part.0 as u8, part.1 as u8);
        }
        count += 1;
    }
    match count {
        4 => Ok(Host::V4(parts)),
        _ => Err(IpError::new(format!("\"{host}\" has {count} parts, an IPv4 address four"))),
    }
}

fn v6(host: &str) -> Result<Host, IpError> {
    if let Ok(ip) = host.parse::<Ipv6Addr>() {
        return Ok(match IpAddr::V6(ip).to_canonical() {
            IpAddr::V4(ip) => Host::V4(ip.octets().map(|n| (n, n))),
            IpAddr::V6(ip) => Host::V6(ip.segments().map(|n| (n, n))),
        });
    }
    let mut parts = [(0, 0); 8];
    let mut count = 0;
    for text in host.split(':') {
        let part = part(text, 0xffff, 16)?;
        if let Some(place) = parts.get_mut(count) {
            *place = (part.0 as u16, part.1 as u16);
        }
        count += 1;
    }
    match count {
        8 => Ok(Host::V6(parts)),
        _ => {
            let message = format!("\"{host}\" has {count} parts, an IPv6 expression eight");
            Err(IpError::new(message))
        }
    }
}

/// `*`, a number, or `from-to`.
fn part(text: &str, most: u32, radix: u32) -> Result<(u32, u32), IpError> {
    let wrong = || IpError::new(format!("\"{text}\" is no part of an address"));
    if text == "*" {
        return Ok((0, most));
    }
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    let from = number(from, most, radix).ok_or_else(wrong)?;
    let to = number(to, most, radix).ok_or_else(wrong)?;
    match from <= to {
        true => Ok((from, to)),
        false => Err(IpError::new(format!("the range \"{text}\" is empty"))),
    }
}

/// Digits alone, within a bound; in decimal without leading zeros, which some read as octal.
fn number(text: &str, most: u32, radix: u32) -> Option<u32> {
    let digits = !text.is_empty() && text.len() <= 5 && text.chars().all(|c| c.is_digit(radix));
    if !digits || radix == 10 && text.len() > 1 && text.starts_with('0') {
        return None;
    }
    u32::from_str_radix(text, radix).ok().filter(|&n| n <= most)
}

#[cfg(test)]
mod tests;
