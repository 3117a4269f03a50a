"""A client of the Dubbo control plane, made from the contract alone: nothing of Rulecast
but api/proto/dubbo_*.proto. It does what it is told, one JSON object a line, and answers
each with one.

    python client.py FOLDER-OF-PROTOS
"""

import json
import queue
import sys
import tempfile
import threading
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.json_format import MessageToDict
from grpc_tools import protoc

LIMIT = 30  # seconds for anything


def generate(protos: Path) -> None:
    """Makes the messages and stubs of the contract importable."""
    made = tempfile.mkdtemp(prefix="rulecast-compat-")
    files = sorted(str(file) for file in protos.glob("dubbo_*.proto"))
    options = [f"-I{protos}", f"--python_out={made}", f"--grpc_python_out={made}"]
    # The well-known types that come with the tools.
    well_known = Path(protoc.__file__).parent / "_proto"
    if protoc.main(["protoc", *options, f"-I{well_known}", *files]) != 0:
        raise SystemExit("the contract does not compile")
    sys.path.insert(0, made)


class Stream:
    """An open Observe; responses wait in a queue."""

    def __init__(self, channel):
        self.requests = queue.Queue()
        self.responses = queue.Queue()
        self.call = rule_grpc.RuleServiceStub(channel).Observe(iter(self.requests.get, None))
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        try:
            for response in self.call:
                self.responses.put(response)
            self.responses.put({"end": "OK", "details": ""})
        except grpc.RpcError as error:
            self.responses.put({"end": error.code().name, "details": error.details()})


class Client:
    def __init__(self):
        self.key = self.chain = self.roots = self.stream = self.channel = None

    def connect(self, address, roots=None):
        """A connection: with the certificate, where there is one. The name in the
        address is verified, as everywhere outside of Rulecast."""
        credentials = grpc.ssl_channel_credentials(
            (roots or self.roots).encode(),
            self.key_pem() if self.chain else None,
            self.chain.encode() if self.chain else None,
        )
        return grpc.secure_channel(address, credentials)

    def key_pem(self):
        form = (
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return self.key.private_bytes(*form)

    def identity(self, address, roots=None, token=None, kind=None, keep=True):
        """CreateIdentity; with a credential, or with the certificate that is held."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Dubbo")])
        csr = x509.CertificateSigningRequestBuilder().subject_name(name)
        csr = csr.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        request = ca.IdentityRequest(csr=csr.decode(), type="CONNECTION")
        request.metadata.update({"role": "admin"})
        metadata = []
        if token is not None:
            metadata = [("authorization", f"Bearer {token}"), ("authorization-type", kind)]
        with self.connect(address, roots) as channel:
            stub = ca_grpc.AuthorityServiceStub(channel)
            answer = stub.CreateIdentity(request, metadata=metadata, timeout=LIMIT)
        told = MessageToDict(answer, preserving_proto_field_name=True)
        if answer.success:
            leaf = x509.load_pem_x509_certificate(answer.cert_pem.encode())
            names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
            told["uris"] = names.value.get_values_for_type(x509.UniformResourceIdentifier)
            told["dns"] = names.value.get_values_for_type(x509.DNSName)
            if keep:
                self.key, self.chain = key, answer.cert_pem
                self.roots = "".join(answer.trust_certs)
        return told

    def observe(self, address):
        self.close()
        self.channel = self.connect(address)
        self.stream = Stream(self.channel)

    def send(self, type, nonce=""):
        self.stream.requests.put(rule.ObserveRequest(nonce=nonce, type=type))

    def next(self):
        response = self.stream.responses.get(timeout=LIMIT)
        if isinstance(response, dict):
            return response
        return {
            "nonce": response.nonce,
            "type": response.type,
            "revision": response.revision,
            "data": [self.item(item) for item in response.data],
        }

    @staticmethod
    def item(item):
        kind = item.type_url.rsplit(".", 1)[1]
        message = getattr(rules, kind)()
        if not item.Unpack(message):
            raise ValueError(f"{item.type_url} is no {message.DESCRIPTOR.full_name}")
        told = MessageToDict(message, preserving_proto_field_name=True)
        return {"url": item.type_url, "key": message.key, "spec": told.get("spec", {})}

    def close(self):
        if self.stream:
            self.stream.requests.put(None)
            self.stream.call.cancel()
            self.channel.close()
            self.stream = self.channel = None

    def register(self, address, namespace, application, interfaces):
        """registerServiceAppMapping."""
        request = mapping.ServiceMappingRequest(
            namespace=namespace, applicationName=application, interfaceNames=interfaces
        )
        with self.connect(address) as channel:
            stub = mapping_grpc.ServiceNameMappingServiceStub(channel)
            answer = stub.registerServiceAppMapping(request, timeout=LIMIT)
        return {"success": answer.success, "message": answer.message}


generate(Path(sys.argv[1]))
import dubbo_ca_pb2 as ca  # noqa: E402
import dubbo_ca_pb2_grpc as ca_grpc  # noqa: E402
import dubbo_mapping_pb2 as mapping  # noqa: E402
import dubbo_mapping_pb2_grpc as mapping_grpc  # noqa: E402
import dubbo_rule_pb2 as rule  # noqa: E402
import dubbo_rule_pb2_grpc as rule_grpc  # noqa: E402
import dubbo_rules_pb2 as rules  # noqa: E402

client = Client()
for line in sys.stdin:
    order = json.loads(line)
    try:
        answer = getattr(client, order.pop("do"))(**order) or {}
    except grpc.RpcError as error:
        answer = {"error": error.code().name, "details": error.details()}
    except queue.Empty:
        answer = {"error": "TIMEOUT", "details": f"nothing came within {LIMIT} s"}
    print(json.dumps(answer), flush=True)
