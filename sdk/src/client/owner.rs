//! Whose the snapshot in a state folder is, where no certificate is kept beside it: in a pod
//! the key stays in memory, and after a restart the authority may be away. A pod's rules are
//! then restored when the note names the service account of its token.

use std::path::Path;

use rulecast_api::SpiffeId;
use rulecast_identity::{IdentityError, files};

const FILE_NAME: &str = "rules.owner";

/// The identity noted last, if it can be read. Blocks.
pub(super) fn load(folder: &Path) -> Option<SpiffeId> {
    files::read_secret(&folder.join(FILE_NAME)).ok()?.trim().parse().ok()
}

/// Notes an identity. Blocks.
pub(super) fn store(folder: &Path, id: &SpiffeId) -> Result<(), IdentityError> {
    if load(folder).as_ref() == Some(id) {
        return Ok(());
    }
    files::make_folder(folder)?;
    files::replace(&folder.join(FILE_NAME), format!("{id}\n").as_bytes())
}
