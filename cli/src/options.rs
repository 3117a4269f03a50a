//! Options: each is declared once and exists as flag, environment variable and
//! line of a TOML file. Flag before environment before file before default.

use std::{
    fmt, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rulecast_identity::TokenSource;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A duration as people write it: `10ms`, `1h 30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        humantime::parse_duration(text)
            .map(Self)
            .map_err(|error| format!("{error}; write for example 10ms, 30s, 1h"))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(crate) struct Address(pub(crate) SocketAddr);

impl FromStr for Address {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error| {
            format!("{error}; write IP:port, for example 127.0.0.1:7443 or [::]:7443")
        })
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Where a service keeps what it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Place {
    /// In folders.
    Files,
    /// In the Kubernetes API server.
    #[cfg(feature = "kubernetes")]
    Kubernetes,
}

impl FromStr for Place {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        <Self as clap::ValueEnum>::from_str(text, false)
    }
}

/// The credential in `--token-file`: with `--trust-bundle` a service-account token, else a
/// join token, which names its root itself.
pub(crate) fn token_source(
    token: Option<PathBuf>,
    bundle: Option<PathBuf>,
) -> Result<Option<TokenSource>> {
    match (token, bundle) {
        (Some(token), Some(bundle)) => Ok(Some(TokenSource::Kubernetes { token, bundle })),
        (Some(token), None) => Ok(Some(TokenSource::File(token))),
        (None, None) => Ok(None),
        (None, Some(_)) => bail!(
            "RC0701: --trust-bundle needs --token-file: the service-account token to show to the authority"
        ),
    }
}

/// Reads the options that a TOML file sets; unknown ones are refused by name.
pub(crate) fn read_file<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("RC0701: cannot read the config file {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("RC0701: config file {}", path.display()))
}

/// Declares a set of options: `$Options` is what clap and the file fill, `$Settings`
/// what comes out. Defaults are written as text, so that help can show them.
macro_rules! options {
    (
        $(#[$meta:meta])* $Options:ident => $Settings:ident;
        $( with { $($help:literal $name:ident: $ty:ty = $default:literal, $env:literal;)* } )?
        $( may { $($ohelp:literal $oname:ident: $oty:ty, $oenv:literal;)* } )?
        $( many { $($mhelp:literal $mname:ident: $mty:ty, $menv:literal;)* } )?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, clap::Args, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
        pub(crate) struct $Options {
            $($(
                #[arg(long, env = $env, help = concat!($help, " [default: ", $default, "]"))]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub(crate) $name: Option<$ty>,
            )*)?
            $($(
                #[arg(long, env = $oenv, help = $ohelp)]
                #[serde(skip_serializing_if = "Option::is_none")]
                pub(crate) $oname: Option<$oty>,
            )*)?
            $($(
                #[arg(long, env = $menv, help = $mhelp, value_delimiter = ',')]
                #[serde(skip_serializing_if = "Vec::is_empty")]
                pub(crate) $mname: Vec<$mty>,
            )*)?
            /// Read options from this TOML file; flags and environment come before it
            #[arg(long, value_name = "FILE")]
            #[serde(skip)]
            pub(crate) config: Option<std::path::PathBuf>,
            /// Print the options in force as TOML, and stop
            #[arg(long)]
            #[serde(skip)]
            pub(crate) print_config: bool,
        }

        /// The options in force.
        #[derive(Clone, Debug, serde::Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub(crate) struct $Settings {
            $($(pub(crate) $name: $ty,)*)?
            $($(
                #[serde(skip_serializing_if = "Option::is_none")]
                pub(crate) $oname: Option<$oty>,
            )*)?
            $($(pub(crate) $mname: Vec<$mty>,)*)?
        }

        impl $Options {
            /// Merges flags, environment, file and defaults. `None`: the settings were
            /// only to be printed, and have been.
            pub(crate) fn resolve(self) -> anyhow::Result<Option<$Settings>> {
                #[allow(unused_variables, reason = "a set may have no optional ones")]
                let file: Self = match &self.config {
                    Some(path) => $crate::options::read_file(path)?,
                    None => Self::default(),
                };
                let settings = $Settings {
                    $($($name: match self.$name.or(file.$name) {
                        Some(value) => value,
                        None => $default.parse().map_err(|error| {
                            anyhow::anyhow!("RC0701: default of {}: {error}", stringify!($name))
                        })?,
                    },)*)?
                    $($($oname: self.$oname.or(file.$oname),)*)?
                    $($($mname: if self.$mname.is_empty() { file.$mname } else { self.$mname },)*)?
                };
                if self.print_config {
                    $crate::output::out!("{}", toml::to_string(&settings)?);
                    return Ok(None);
                }
                Ok(Some(settings))
            }
        }
    };
}
pub(crate) use options;

#[cfg(test)]
mod tests {
    use super::*;

    options! {
        /// For the test.
        Options => Settings;
        with {
            "How long" quiet: Span = "10ms", "RULECAST_TEST_QUIET";
            "Where" listen: Address = "127.0.0.1:1", "RULECAST_TEST_LISTEN";
        }
        may { "A name" name: String, "RULECAST_TEST_NAME"; }
        many { "Words" words: String, "RULECAST_TEST_WORDS"; }
    }

    #[test]
    fn flag_before_file_before_default() -> Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), "quiet = \"20ms\"\nname = \"file\"\nwords = [\"a\", \"b\"]\n")?;
        let options = Options {
            name: Some("flag".into()),
            config: Some(file.path().into()),
            ..Options::default()
        };
        let settings = options.resolve()?.context("settings")?;
        assert_eq!(settings.quiet, Span(Duration::from_millis(20)));
        assert_eq!(settings.name.as_deref(), Some("flag"));
        assert_eq!(settings.listen.0.port(), 1);
        assert_eq!(settings.words, ["a", "b"]);
        Ok(())
    }

    #[test]
    fn what_is_printed_can_be_read() -> Result<()> {
        let settings = Options::default().resolve()?.context("settings")?;
        let read: Options = toml::from_str(&toml::to_string(&settings)?)?;
        assert_eq!(read.quiet, Some(settings.quiet));
        Ok(())
    }

    #[test]
    fn an_unknown_option_is_named_with_its_line() -> Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), "quiet = \"20ms\"\nlisten-on = 3\n")?;
        let error = format!("{:#}", read_file::<Options>(file.path()).expect_err("refused"));
        assert!(error.contains("listen-on") && error.contains("line 2"), "{error}");
        Ok(())
    }
}
