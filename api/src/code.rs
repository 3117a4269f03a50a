//! Codes of everything that can go wrong before a person's eyes. `docs/errors.md`
//! says of each what it means and what to do; a test keeps the two together.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// A stable code of an error, as printed: `RC0101`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            /// All of them, in order of their numbers.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            /// As printed.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }
        }
    };
}

codes! {
    // 01: manifests.
    /// Not YAML (or JSON).
    ManifestSyntax = "RC0101";
    /// Not a resource: apiVersion, kind or metadata missing or wrong.
    ManifestEnvelope = "RC0102";
    /// A kind that this plane does not know.
    ManifestKind = "RC0103";
    /// A field that the kind does not have.
    FieldUnknown = "RC0104";
    /// A field of the wrong type or with a value outside its range.
    FieldInvalid = "RC0105";
    /// A required field is missing.
    FieldMissing = "RC0106";
    /// Two documents with one kind, namespace and name.
    ManifestDuplicate = "RC0107";
    /// A file or document above the limits.
    ManifestTooLarge = "RC0108";
    // 02: conditions.
    /// A condition that does not parse.
    ConditionSyntax = "RC0201";
    // 03: stores.
    /// The folder cannot be read: the store is down.
    StoreDown = "RC0301";
    /// A file in it cannot be read.
    StoreFile = "RC0302";
    /// A write met another version than it expected.
    StoreConflict = "RC0303";
    /// The state folder cannot be written.
    StoreState = "RC0304";
    /// The API server does not let the plane read or write rules.
    StoreForbidden = "RC0305";
    /// The API server does not serve a kind of rules: its CRD is missing.
    StoreKindMissing = "RC0306";
    // 04: identity.
    /// No credential, or one of an unknown type.
    CredentialMissing = "RC0401";
    /// A join token that is unknown, malformed or already used.
    TokenInvalid = "RC0402";
    /// A join token after its end.
    TokenExpired = "RC0403";
    /// A CSR that is malformed or whose signature is wrong.
    CsrInvalid = "RC0404";
    /// A CSR that asks for another identity than the caller's.
    CsrIdentity = "RC0405";
    /// A CSR that asks to be a CA.
    CsrAuthority = "RC0406";
    /// A CSR with a weak or unsupported key.
    CsrKey = "RC0407";
    /// A peer certificate that no trusted root vouches for.
    PeerUntrusted = "RC0408";
    /// A peer certificate outside its time.
    PeerExpired = "RC0409";
    /// A peer of another trust domain.
    PeerTrustDomain = "RC0410";
    /// A peer certificate without a SPIFFE identity of ours.
    PeerIdentity = "RC0411";
    /// A key file that others may read.
    KeyPermissions = "RC0412";
    /// The authority's folder is damaged, incomplete or missing.
    AuthorityInvalid = "RC0413";
    /// A certificate of another application than the folder's or token's.
    OtherApplication = "RC0414";
    /// A caller that asks too often.
    RateLimited = "RC0415";
    /// The certificate authority cannot be reached, or cannot answer now.
    AuthorityUnreachable = "RC0416";
    /// A state folder of an identity that is damaged or cannot be used.
    IdentityState = "RC0417";
    /// A service-account token that the authority cannot take.
    ServiceAccountToken = "RC0418";
    /// A pod that is gone, over, or another one than its token or certificate says.
    PodGone = "RC0419";
    // 05: delivery.
    /// A type that the plane does not serve.
    TypeUnsupported = "RC0501";
    /// A malformed request.
    RequestInvalid = "RC0502";
    /// This replica is behind what the client has seen.
    ReplicaBehind = "RC0503";
    /// The plane is shutting down.
    Draining = "RC0504";
    /// The client's certificate has expired while connected.
    IdentityEnded = "RC0505";
    /// A plane's answer that a client cannot take.
    ResponseInvalid = "RC0506";
    /// The plane does not know the client's pod yet.
    PodUnknown = "RC0507";
    /// A rule that the client's wire cannot say.
    WireTooNarrow = "RC0508";
    /// A state that is too large for one message.
    StateTooLarge = "RC0509";
    // 06: policies and decisions.
    /// A rule that its policy refused.
    RuleRefused = "RC0601";
    /// A module that cannot be loaded.
    ModuleInvalid = "RC0602";
    /// A policy ran past its deadline.
    PolicyTimeout = "RC0603";
    /// A policy wanted more memory than it may have.
    PolicyMemory = "RC0604";
    /// A policy ran out of stack.
    PolicyStack = "RC0605";
    /// A policy trapped.
    PolicyTrap = "RC0606";
    /// A policy answered with something outside the ABI.
    PolicyOutput = "RC0607";
    /// An input above the ABI's limits.
    PolicyInput = "RC0608";
    /// An item that is not a rule.
    ItemInvalid = "RC0609";
    /// A snapshot on disk that is damaged or of another identity.
    SnapshotInvalid = "RC0610";
    /// No rules yet, and startup does not allow deciding without.
    NotReady = "RC0611";
    // 07: configuration.
    /// An option that is missing or wrong.
    ConfigInvalid = "RC0701";
    /// The plane's socket cannot be reached.
    PlaneUnreachable = "RC0702";
    /// An address that cannot be listened on.
    ListenFailed = "RC0703";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
