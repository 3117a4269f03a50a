//! The last good snapshot on disk.
//!
//! One file per state folder, written whole under another name and renamed over
//! the old one, so that it is always one version or the other. In order:
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `RULECAST` |
//! | 4 | format version, little endian, now 1 |
//! | 32 | SHA-256 of the SPIFFE ID that the snapshot belongs to |
//! | 8 | length of the payload, little endian |
//! | 32 | SHA-256 of all the above and the payload |
//! | … | the payload, a protobuf [`StoredSnapshot`] |
//!
//! The checksum tells damage, not tampering: whoever may write the file may
//! write rules. A file that others than its owner may write is refused.

use std::{
    fs, io,
    io::{Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use prost::Message;
use rulecast_api::{Code, SpiffeId};
use sha2::{Digest as _, Sha256};

/// Name of the file in the state folder.
pub const FILE_NAME: &str = "rules.snapshot";

/// Largest file that is read or written, in bytes.
pub const MAX_LEN: u64 = 512 << 20;

const MAGIC: &[u8; 8] = b"RULECAST";
const VERSION: u32 = 1;
const CHECKED: usize = 8 + 4 + 32 + 8;
const HEADER: usize = CHECKED + 32;

/// All that a client holds, by type.
#[derive(Clone, PartialEq, Message)]
pub struct StoredSnapshot {
    /// Complete types only.
    #[prost(message, repeated, tag = "1")]
    pub types: Vec<StoredType>,
}

/// What a client holds of one type.
#[derive(Clone, PartialEq, Message)]
pub struct StoredType {
    /// `<group>/<version>/<Kind>`.
    #[prost(string, tag = "1")]
    pub type_name: String,
    /// Of the plane's store.
    #[prost(int64, tag = "2")]
    pub revision: i64,
    /// What the plane gave to resume from; may be empty.
    #[prost(bytes = "bytes", tag = "3")]
    pub resume_token: Bytes,
    /// Rules in force, sorted by key.
    #[prost(message, repeated, tag = "4")]
    pub items: Vec<StoredItem>,
    /// Versions that were refused, sorted by key.
    #[prost(message, repeated, tag = "5")]
    pub rejected: Vec<StoredRejection>,
}

/// A rule in force.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StoredItem {
    /// `<name>/<namespace>`.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The rule's bytes as delivered; the item digest is theirs.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// A version that was refused.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct StoredRejection {
    /// `<name>/<namespace>`.
    #[prost(string, tag = "1")]
    pub key: String,
    /// SHA-256 of the refused bytes.
    #[prost(bytes = "bytes", tag = "2")]
    pub item_digest: Bytes,
    /// Of the policies that refused it.
    #[prost(bytes = "bytes", tag = "3")]
    pub engine_digest: Bytes,
    /// Why.
    #[prost(string, tag = "4")]
    pub reason: String,
}

/// Why there is no snapshot to be had from disk, or none could be put there.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The file is damaged, truncated or of another version.
    #[error(
        "{} snapshot {} is ignored: {reason}; it is written anew from what the plane sends",
        Code::SnapshotInvalid, path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file belongs to another identity.
    #[error(
        "{} snapshot {} is refused: it belongs to another identity than {identity}; \
         give each application a state folder of its own",
        Code::SnapshotInvalid, path.display()
    )]
    OtherIdentity {
        /// The file.
        path: PathBuf,
        /// Whose snapshot was wanted.
        identity: SpiffeId,
    },
    /// The state folder cannot be read or written.
    #[error(
        "{} cannot {action} {}: {source}; the folder must be the application's own and writable",
        Code::StoreState, path.display()
    )]
    Io {
        /// "read" or "write".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl DiskError {
    /// For `docs/errors.md`.
    pub fn code(&self) -> Code {
        match self {
            Self::Damaged { .. } | Self::OtherIdentity { .. } => Code::SnapshotInvalid,
            Self::Io { .. } => Code::StoreState,
        }
    }
}

/// Why bytes are no snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Undecodable {
    Damaged(String),
    OtherIdentity,
}

fn identity_hash(identity: &SpiffeId) -> [u8; 32] {
    Sha256::digest(identity.to_string().as_bytes()).into()
}

/// A snapshot as the bytes of its file.
pub fn encode(identity: &SpiffeId, snapshot: &StoredSnapshot) -> Vec<u8> {
    let len = snapshot.encoded_len();
    let mut out = Vec::with_capacity(HEADER + len);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&identity_hash(identity));
    out.extend_from_slice(&(len as u64).to_le_bytes());
    out.extend_from_slice(&[0; 32]);
    out.extend_from_slice(&snapshot.encode_to_vec());
    let mut hash = Sha256::new();
    hash.update(&out[..CHECKED]);
    hash.update(&out[HEADER..]);
    out[CHECKED..HEADER].copy_from_slice(&hash.finalize());
    out
}

pub(crate) fn decode(identity: &SpiffeId, file: &[u8]) -> Result<StoredSnapshot, Undecodable> {
    let damaged = |reason: &str| Err(Undecodable::Damaged(reason.to_owned()));
    let Some((header, payload)) = file.split_at_checked(HEADER) else {
        return damaged("it is shorter than its header");
    };
    if !header.starts_with(MAGIC) {
        return damaged("it is no snapshot of Rulecast");
    }
    let number = |from: usize, to: usize| {
        header[from..to].iter().rev().fold(0u64, |n, byte| n << 8 | u64::from(*byte))
    };
    let version = number(8, 12);
    if version != u64::from(VERSION) {
        return Err(Undecodable::Damaged(format!(
            "it has format version {version}; this program reads {VERSION}"
        )));
    }
    if number(44, CHECKED) != payload.len() as u64 {
        return damaged("its length is not what its header says");
    }
    let mut hash = Sha256::new();
    hash.update(&header[..CHECKED]);
    hash.update(payload);
    if hash.finalize().as_slice() != &header[CHECKED..] {
        return damaged("its checksum is wrong");
    }
    if header[12..44] != identity_hash(identity) {
        return Err(Undecodable::OtherIdentity);
    }
    StoredSnapshot::decode(Bytes::copy_from_slice(payload))
        .map_err(|e| Undecodable::Damaged(format!("its payload does not decode: {e}")))
}

/// A state folder's snapshot file. Its methods block: not for runtime threads.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    folder: PathBuf,
    path: PathBuf,
}

impl SnapshotFile {
    /// Of a folder, which the first write makes (0700) when it is missing.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), path: folder.join(FILE_NAME) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn io(&self, action: &'static str) -> impl Fn(io::Error) -> DiskError + '_ {
        move |source| DiskError::Io { action, path: self.path.clone(), source }
    }

    /// What the file holds, if it is there, whole, and `identity`'s.
    pub fn load(&self, identity: &SpiffeId) -> Result<Option<StoredSnapshot>, DiskError> {
        let damaged = |reason: String| DiskError::Damaged { path: self.path.clone(), reason };
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let opened = fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(&self.path);
        let file = match opened {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.io("read")(e)),
        };
        let meta = file.metadata().map_err(self.io("read"))?;
        if !meta.is_file() {
            return Err(damaged("it is no regular file".into()));
        }
        let owner = rustix::process::geteuid().as_raw();
        if meta.mode() & 0o022 != 0 || (meta.uid() != owner && meta.uid() != 0) {
            return Err(damaged("others than its owner may write it; it should be 0600".into()));
        }
        if meta.len() > MAX_LEN {
            return Err(damaged(format!("it is longer than {MAX_LEN} bytes")));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
        file.take(MAX_LEN).read_to_end(&mut bytes).map_err(self.io("read"))?;
        decode(identity, &bytes).map(Some).map_err(|e| match e {
            Undecodable::Damaged(reason) => damaged(reason),
            Undecodable::OtherIdentity => {
                DiskError::OtherIdentity { path: self.path.clone(), identity: identity.clone() }
            }
        })
    }

    /// Replaces the file: afterwards it holds this snapshot, or, when that fails, what it held.
    pub fn store(&self, identity: &SpiffeId, snapshot: &StoredSnapshot) -> Result<(), DiskError> {
        if snapshot.encoded_len() as u64 > MAX_LEN - HEADER as u64 {
            let source = io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("the rules take more than {MAX_LEN} bytes"),
            );
            return Err(self.io("write")(source));
        }
        self.replace(&encode(identity, snapshot)).map_err(self.io("write"))
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let mut temp = tempfile::Builder::new()
            .prefix(".rules.snapshot.")
            .permissions(fs::Permissions::from_mode(0o600))
            .tempfile_in(&self.folder)?;
        temp.write_all(bytes)?;
        temp.as_file().sync_all()?;
        temp.persist(&self.path).map_err(|e| e.error)?;
        // The rename is on disk when the folder is.
        fs::File::open(&self.folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(application: &str) -> SpiffeId {
        SpiffeId::application("test", "default", application).expect("a valid name")
    }

    fn sample() -> StoredSnapshot {
        StoredSnapshot {
            types: vec![StoredType {
                type_name: "dubbo.apache.org/v1alpha1/ConditionRoute".into(),
                revision: 42,
                resume_token: Bytes::from_static(b"token"),
                items: vec![StoredItem {
                    key: "a/default".into(),
                    value: Bytes::from_static(b"x"),
                }],
                rejected: vec![StoredRejection {
                    key: "b/default".into(),
                    item_digest: Bytes::from_static(&[7; 32]),
                    engine_digest: Bytes::from_static(&[8; 32]),
                    reason: "RC0601 no".into(),
                }],
            }],
        }
    }

    fn snapshots() -> impl Strategy<Value = StoredSnapshot> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        let item =
            ("[a-z]{1,8}/[a-z]{1,8}", bytes()).prop_map(|(key, value)| StoredItem { key, value });
        let rejection = ("[a-z]{1,8}/[a-z]{1,8}", bytes(), bytes(), ".{0,20}").prop_map(
            |(key, item_digest, engine_digest, reason)| StoredRejection {
                key,
                item_digest,
                engine_digest,
                reason,
            },
        );
        let kind =
            (
                "[a-zA-Z/.]{0,20}",
                any::<i64>(),
                bytes(),
                proptest::collection::vec(item, 0..5),
                proptest::collection::vec(rejection, 0..3),
            )
                .prop_map(|(type_name, revision, resume_token, items, rejected)| {
                    StoredType { type_name, revision, resume_token, items, rejected }
                });
        proptest::collection::vec(kind, 0..3).prop_map(|types| StoredSnapshot { types })
    }

    #[test]
    fn what_is_stored_is_loaded_and_private() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("deep/state");
        let file = SnapshotFile::new(&folder);
        assert!(file.load(&id("shop")).expect("no file is no error").is_none());
        file.store(&id("shop"), &StoredSnapshot::default()).expect("stored");
        file.store(&id("shop"), &sample()).expect("stored over the first");
        assert_eq!(file.load(&id("shop")).expect("whole"), Some(sample()));
        let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o777;
        assert_eq!((mode(file.path()), mode(&folder)), (0o600, 0o700));
        assert_eq!(fs::read_dir(&folder).expect("readable").count(), 1, "nothing temporary stays");
    }

    #[test]
    fn anothers_snapshot_is_refused() {
        let root = tempfile::tempdir().expect("a folder");
        let file = SnapshotFile::new(root.path());
        file.store(&id("shop"), &sample()).expect("stored");
        let error = file.load(&id("thief")).expect_err("another's");
        assert_eq!(error.code(), Code::SnapshotInvalid);
        assert!(
            error.to_string().contains("another identity than spiffe://test/ns/default/app/thief")
        );
    }

    #[test]
    fn files_that_others_may_write_or_that_are_no_files_are_refused() {
        let root = tempfile::tempdir().expect("a folder");
        let file = SnapshotFile::new(root.path());
        file.store(&id("shop"), &sample()).expect("stored");
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o666)).expect("own file");
        let error = file.load(&id("shop")).expect_err("wide").to_string();
        assert!(error.contains("0600"), "{error}");
        fs::remove_file(file.path()).expect("own file");
        std::os::unix::fs::symlink("/dev/zero", file.path()).expect("own folder");
        assert_eq!(file.load(&id("shop")).expect_err("a link").code(), Code::StoreState);
        fs::remove_file(file.path()).expect("own file");
        fs::create_dir(file.path()).expect("own folder");
        assert!(file.load(&id("shop")).is_err());
        assert_eq!(
            file.store(&id("shop"), &sample()).expect_err("a folder").code(),
            Code::StoreState
        );
    }

    #[test]
    fn another_version_is_said() {
        let mut bytes = encode(&id("shop"), &sample());
        bytes[8] = 9;
        match decode(&id("shop"), &bytes) {
            Err(Undecodable::Damaged(reason)) => assert!(reason.contains("version 9"), "{reason}"),
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        #[test]
        fn round_trips(snapshot in snapshots()) {
            prop_assert_eq!(decode(&id("a"), &encode(&id("a"), &snapshot)), Ok(snapshot));
        }

        #[test]
        fn any_change_of_bytes_is_noticed(
            snapshot in snapshots(),
            flips in proptest::collection::vec((any::<proptest::sample::Index>(), 1u8..), 1..6),
        ) {
            let whole = encode(&id("a"), &snapshot);
            let mut bytes = whole.clone();
            for (at, mask) in &flips {
                let at = at.index(bytes.len());
                bytes[at] ^= mask;
            }
            prop_assume!(bytes != whole);
            prop_assert!(matches!(decode(&id("a"), &bytes), Err(Undecodable::Damaged(_))));
        }

        #[test]
        fn any_cut_or_growth_is_noticed(
            snapshot in snapshots(), at in any::<proptest::sample::Index>(), more in 1usize..50
        ) {
            let whole = encode(&id("a"), &snapshot);
            prop_assert!(decode(&id("a"), &whole[..at.index(whole.len())]).is_err());
            let mut long = whole;
            long.resize(long.len() + more, 0);
            prop_assert!(decode(&id("a"), &long).is_err());
        }

        #[test]
        fn anything_at_all_is_read_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), headed in any::<bool>()
        ) {
            let mut file = if headed { b"RULECAST\x01\0\0\0".to_vec() } else { Vec::new() };
            file.extend_from_slice(&bytes);
            prop_assert!(decode(&id("a"), &file).is_err());
        }

        #[test]
        fn a_damaged_payload_under_a_right_checksum_does_not_panic(
            payload in proptest::collection::vec(any::<u8>(), 0..300)
        ) {
            let mut file = encode(&id("a"), &StoredSnapshot::default());
            file[44..52].copy_from_slice(&(payload.len() as u64).to_le_bytes());
            file.extend_from_slice(&payload);
            let mut hash = Sha256::new();
            hash.update(&file[..CHECKED]);
            hash.update(&payload);
            let sum = hash.finalize();
            file[CHECKED..HEADER].copy_from_slice(&sum);
            let _ = decode(&id("a"), &file);
        }
    }
}
