"""Tells nostr-rs-relay to take events only from connections that have proved to be their author's (NIP-42).

By itself it asks everybody who they are, and then takes events of those who do not say it as well.

usage: admission.py PORT
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

messages, services = grpc.protos_and_services("admission.proto")


class Admission(services.AuthorizationServicer):
    def EventAdmit(self, question, context):
        if question.event.pubkey == question.auth_pubkey:
            return messages.Answer(decision=messages.PERMIT)
        return messages.Answer(decision=messages.DENY, message="not authenticated")


server = grpc.server(ThreadPoolExecutor())
services.add_AuthorizationServicer_to_server(Admission(), server)
server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
server.wait_for_termination()
