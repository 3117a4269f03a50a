//! Join tokens as the authority keeps them: one file each, named by the hash of
//! the secret. Another process may add one at any time.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rulecast_api::{Code, spiffe::valid_segment};
use rulecast_identity::{files, token};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::CaError;

/// How long after its use a token may be repeated by the holder of the same key,
/// so that an answer lost on the way is no lock-out.
pub const REPEAT: Duration = Duration::from_secs(600);
/// How long a token is remembered after its end, to say "expired" instead of "unknown".
const REMEMBER: Duration = Duration::from_secs(24 * 3600);
/// Longest life of a token.
pub const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
/// Most tokens in the folder.
const MAX_TOKENS: usize = 100_000;

/// The folder of join tokens.
#[derive(Clone, Debug)]
pub struct Tokens {
    dir: PathBuf,
}

/// What a token is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Namespace of the application that may join.
    pub namespace: String,
    /// The application.
    pub application: String,
    /// Names the token in audit logs.
    pub token_id: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    namespace: String,
    application: String,
    /// Unix seconds.
    expires: u64,
    used: Option<Use>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Use {
    /// SHA-256 of the public key, hexadecimal.
    key: String,
    /// Unix seconds.
    at: u64,
}

impl Tokens {
    /// Of this folder, which must exist.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Remembers the token with this secret.
    pub fn add(
        &self,
        secret: &[u8; 32],
        namespace: &str,
        application: &str,
        ttl: Duration,
    ) -> Result<(), CaError> {
        let config = |message| Err(CaError::new(Code::ConfigInvalid, message));
        for (what, name) in [("namespace", namespace), ("application", application)] {
            if !valid_segment(name) {
                return config(format!("the {what} \"{name}\" must be 1 to 253 of a-zA-Z0-9._-"));
            }
        }
        if ttl < Duration::from_secs(1) || ttl > MAX_TTL {
            return config("the life of a token must be 1 second to 30 days".into());
        }
        let now = now();
        let record = Record {
            namespace: namespace.into(),
            application: application.into(),
            expires: now + ttl.as_secs(),
            used: None,
        };
        let _lock = self.lock()?;
        self.prune(now)?;
        self.write(&self.path(&token::secret_hash(secret)), &record)
    }

    /// What `secret` would be good for now, in the hands of whoever may still use
    /// it. Changes nothing.
    pub fn look(&self, secret: &[u8; 32]) -> Result<Grant, CaError> {
        let hash = token::secret_hash(secret);
        self.read(&self.path(&hash))?.grant(&hash, None, now())
    }

    /// Uses the token up for the holder of `key` (SHA-256 of the public key): on
    /// disk when this returns.
    pub fn redeem(&self, secret: &[u8; 32], key: &str) -> Result<Grant, CaError> {
        let hash = token::secret_hash(secret);
        let path = self.path(&hash);
        // Unknown ones need no lock, so that guessing holds up nobody.
        self.read(&path)?;
        let _lock = self.lock()?;
        let mut record = self.read(&path)?;
        let now = now();
        let grant = record.grant(&hash, Some(key), now)?;
        if record.used.is_none() {
            record.used = Some(Use { key: key.into(), at: now });
            self.write(&path, &record)?;
        }
        Ok(grant)
    }

    fn path(&self, hash: &[u8; 32]) -> PathBuf {
        self.dir.join(format!("{}.json", hex::encode(hash)))
    }

    fn read(&self, path: &Path) -> Result<Record, CaError> {
        if !path.exists() {
            return Err(CaError::new(
                Code::TokenInvalid,
                "the join token is unknown here; make one with `rulecast ca token create` on this authority",
            ));
        }
        serde_json::from_str(&files::read_secret(path)?)
            .map_err(|e| CaError::authority(format!("{}: {e}; remove it", path.display())))
    }

    fn write(&self, path: &Path, record: &Record) -> Result<(), CaError> {
        let text = serde_json::to_vec(record).map_err(|e| CaError::authority(e.to_string()))?;
        Ok(files::replace(path, &text)?)
    }

    /// One change at a time over all processes, until the file is dropped.
    fn lock(&self) -> Result<File, CaError> {
        let path = self.dir.join(".lock");
        let failed = |e: io::Error| {
            CaError::authority(format!("{}: {e}; see that the folder is ours", path.display()))
        };
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
        Ok(file)
    }

    /// Forgets what ended long ago, and refuses to grow without end.
    fn prune(&self, now: u64) -> Result<(), CaError> {
        let entries = fs::read_dir(&self.dir).map_err(|e| {
            CaError::authority(format!("{}: {e}; restore the folder", self.dir.display()))
        })?;
        let mut kept = 0;
        for path in entries.flatten().map(|e| e.path()) {
            if path.extension().is_none_or(|e| e != "json") {
                continue;
            }
            match self.read(&path) {
                Ok(record) if record.expires.saturating_add(REMEMBER.as_secs()) < now => {
                    // Another try comes with the next token.
                    let _ = fs::remove_file(&path);
                }
                _ => kept += 1,
            }
        }
        if kept >= MAX_TOKENS {
            return Err(CaError::authority(format!(
                "{} holds {kept} join tokens; wait until some have ended",
                self.dir.display()
            )));
        }
        Ok(())
    }
}

impl Record {
    fn grant(&self, hash: &[u8; 32], key: Option<&str>, now: u64) -> Result<Grant, CaError> {
        let refused = |code, why: &str| {
            Err(CaError::new(
                code,
                format!("the join token {}; make another with `rulecast ca token create`", why),
            ))
        };
        match &self.used {
            Some(used) if key.is_some_and(|key| used.key != key) => {
                return refused(Code::TokenInvalid, "was used already, with another key");
            }
            Some(used) if now > used.at.saturating_add(REPEAT.as_secs()) => {
                return refused(Code::TokenInvalid, "was used already, more than 10 minutes ago");
            }
            None if now >= self.expires => {
                return refused(Code::TokenExpired, "is past its end");
            }
            _ => {}
        }
        Ok(Grant {
            namespace: self.namespace.clone(),
            application: self.application.clone(),
            token_id: token::token_id(hash),
        })
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; 32] = [7; 32];
    const HOUR: Duration = Duration::from_secs(3600);

    fn tokens() -> (tempfile::TempDir, Tokens) {
        let dir = tempfile::tempdir().expect("folder");
        let tokens = Tokens::new(dir.path());
        tokens.add(&SECRET, "shop", "web", HOUR).expect("added");
        (dir, tokens)
    }

    fn rewrite(tokens: &Tokens, change: impl FnOnce(&mut Record)) {
        let path = tokens.path(&token::secret_hash(&SECRET));
        let mut record = tokens.read(&path).expect("there");
        change(&mut record);
        tokens.write(&path, &record).expect("written");
    }

    #[test]
    fn used_once_but_repeated_with_the_same_key() {
        let (_dir, tokens) = tokens();
        let grant = tokens.look(&SECRET).expect("good");
        assert_eq!((&*grant.namespace, &*grant.application), ("shop", "web"));
        assert_eq!(tokens.redeem(&SECRET, "b").expect("first use"), grant);
        assert_eq!(tokens.redeem(&SECRET, "b").expect("repeated"), grant);
        assert_eq!(tokens.redeem(&SECRET, "a").expect_err("other key").code(), Code::TokenInvalid);
        rewrite(&tokens, |r| r.used.as_mut().expect("used").at -= REPEAT.as_secs() + 1);
        assert_eq!(tokens.redeem(&SECRET, "b").expect_err("late").code(), Code::TokenInvalid);
    }

    #[test]
    fn ended_and_unknown_are_told_apart() {
        let (_dir, tokens) = tokens();
        rewrite(&tokens, |r| r.expires = now() - 1);
        assert_eq!(tokens.redeem(&SECRET, "a").expect_err("ended").code(), Code::TokenExpired);
        assert_eq!(tokens.redeem(&[8; 32], "a").expect_err("unknown").code(), Code::TokenInvalid);
        rewrite(&tokens, |r| r.expires = now() - REMEMBER.as_secs() - 1);
        tokens.add(&[9; 32], "shop", "web", HOUR).expect("added");
        assert_eq!(tokens.look(&SECRET).expect_err("forgotten").code(), Code::TokenInvalid);
    }

    #[test]
    fn only_one_of_many_keys_gets_it() {
        let (_dir, tokens) = tokens();
        let winners: usize = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..8)
                .map(|n| {
                    scope.spawn({
                        let tokens = &tokens;
                        move || tokens.redeem(&SECRET, &n.to_string()).is_ok()
                    })
                })
                .collect();
            tries.into_iter().map(|t| usize::from(t.join().expect("no panic"))).sum()
        });
        assert_eq!(winners, 1);
    }

    #[test]
    fn names_and_lives_are_checked() {
        let (_dir, tokens) = tokens();
        for (namespace, application, ttl) in [
            ("a/b", "c", HOUR),
            ("a", "", HOUR),
            ("a", "b", Duration::ZERO),
            ("a", "b", MAX_TTL * 2),
        ] {
            let error = tokens.add(&SECRET, namespace, application, ttl).expect_err("refused");
            assert_eq!(error.code(), Code::ConfigInvalid);
        }
    }

    #[test]
    fn the_secret_is_not_on_disk() {
        let (dir, _tokens) = tokens();
        for entry in fs::read_dir(dir.path()).expect("folder").flatten() {
            let text = fs::read_to_string(entry.path()).expect("text");
            let name = entry.file_name().to_string_lossy().into_owned();
            assert!(!text.contains(&hex::encode(SECRET)) && !name.contains(&hex::encode(SECRET)));
        }
    }
}
