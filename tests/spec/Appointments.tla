---------------------------- MODULE Appointments ----------------------------
(* What the controller decides for a group of the rule in-sync. Models raft/ha_control.py, elect() and alter().
   An appointment: generation, version, epoch, master, and sync: node -> number of its directory, 0 for a node that is not in the set. *)
EXTENDS Members

InSet(sync) == {n \in Nodes : sync[n] # 0}

(* elect(): the reasons to refuse. `last` is the latest appointment, None before the first. *)
RefusesElection(last, ask) ==
    LET fresh == last = None \/ ask.generation > last.generation
        sync  == IF fresh THEN ask.voters ELSE last.sync
    IN \/ ask.begun /\ fresh
       \/ ~fresh /\ ask.generation < last.generation
       \/ ~fresh /\ ~Guard("epoch-compared", ask.epoch = last.epoch)
       \/ ~Guard("elected-from-set", sync[ask.node] = ask.directory /\ ask.directory # 0)

Elected(last, ask) ==
    LET fresh == last = None \/ ask.generation > last.generation
        epoch == IF last = None THEN 0 ELSE last.epoch
        base  == IF "epoch-compared" \in Dropped /\ ~fresh THEN ask.epoch ELSE epoch
    IN [generation |-> ask.generation,
        version    |-> IF last = None THEN 1 ELSE last.version + 1,
        epoch      |-> (IF base > ask.term THEN base ELSE ask.term) + 1,
        master     |-> ask.node,
        sync       |-> IF fresh THEN ask.voters ELSE last.sync]

(* alter(): only the master of the present epoch changes the set, from the version that it knew. *)
RefusesSet(last, ask) ==
    \/ last = None
    \/ <<ask.generation, ask.epoch, ask.node>> # <<last.generation, last.epoch, last.master>>
    \/ ~Guard("version-compared", ask.version = last.version)
    \/ ask.sync[ask.node] = 0

Altered(last, ask) == [last EXCEPT !.version = @ + 1, !.sync = ask.sync]

Refuses(last, ask) == IF ask.kind = "elect" THEN RefusesElection(last, ask) ELSE RefusesSet(last, ask)
Decision(last, ask) == IF ask.kind = "elect" THEN Elected(last, ask) ELSE Altered(last, ask)

(* A request that will be refused for ever: epochs, generations and versions only grow. *)
Void(last, ask) ==
    /\ last # None
    /\ \/ ask.generation < last.generation
       \/ ask.kind = "elect" /\ ask.generation = last.generation /\ ask.epoch # last.epoch
       \/ ask.kind = "alter" /\ (ask.epoch # last.epoch \/ ~Guard("version-compared", ask.version = last.version))
=============================================================================
