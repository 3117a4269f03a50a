//! Which calls are traced: a share of all, and those of which the caller's trace has a sample.

use http::HeaderMap;
use tracing::Level;

/// The target of all spans of calls.
pub(crate) const TARGET: &str = "rulecast";

/// What is traced. While nobody listens to spans of [`TARGET`], nothing is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    /// Of 2³² drawn numbers those below this are taken.
    below: u64,
}

impl Sampling {
    /// A share of calls, 0 to 1; what is outside counts as the nearer of both.
    pub(crate) fn new(share: f64) -> Self {
        // Of what is no number the cast makes 0.
        Self { below: (share.clamp(0.0, 1.0) * 2f64.powi(32)) as u64 }
    }

    /// Whether a call with these headers is traced.
    #[inline]
    pub(crate) fn takes(self, headers: &HeaderMap) -> bool {
        let asked = || headers.get("traceparent").is_some_and(|value| sampled(value.as_bytes()));
        tracing::span_enabled!(target: TARGET, Level::INFO)
            && (u64::from(fastrand::u32(..)) < self.below || asked())
    }
}

/// Whether a `traceparent` of W3C Trace Context has the flag `sampled`.
fn sampled(value: &[u8]) -> bool {
    let hex = |range: std::ops::Range<usize>| {
        let text = value.get(range)?;
        // Of several versions the flags stand in one place; only `from_str_radix` takes a sign.
        let text = std::str::from_utf8(text).ok().filter(|t| !t.starts_with('+'))?;
        u8::from_str_radix(text, 16).ok()
    };
    let dashes = [2, 35, 52].iter().all(|&at| value.get(at) == Some(&b'-'));
    let ends = match hex(0..2) {
        Some(0) => value.len() == 55,
        None | Some(0xff) => false,
        Some(_) => value.get(55).is_none_or(|&next| next == b'-'),
    };
    dashes && ends && hex(53..55).is_some_and(|flags| flags & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_of_every_version_that_may_be() {
        let of = |version: &str, flags: &str| {
            let ids = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
            sampled(format!("{version}-{ids}-{flags}").as_bytes())
        };
        for (version, flags, taken) in [
            ("00", "01", true),
            ("00", "03", true),
            ("00", "00", false),
            ("00", "02", false),
            ("00", "+1", false),
            ("00", "1", false),
            ("00", "01-later", false),
            ("cc", "01-later", true),
            ("cc", "01later", false),
            ("ff", "01", false),
        ] {
            assert_eq!(of(version, flags), taken, "{version} {flags}");
        }
        for bad in ["", "00", "00-x-y-01"] {
            assert!(!sampled(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn shares_are_kept_within_none_and_all() {
        for (share, below) in [(-1.0, 0), (0.0, 0), (0.5, 1 << 31), (1.0, 1 << 32), (2.0, 1 << 32)]
        {
            assert_eq!(Sampling::new(share).below, below, "{share}");
        }
        assert_eq!(Sampling::new(f64::NAN).below, 0);
    }
}
