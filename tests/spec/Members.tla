------------------------------ MODULE Members ------------------------------
(* The members of a group and their arithmetic: what one change makes of them, and which copies and votes are a quorum.
   Models raft/config.py (Members, Rule), raft/membership.py (changed), raft/quorum.py and the quorums of raft/policy.py. *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Nodes,     \* all nodes that are or may become members
    None,      \* a model value: no node, nothing
    Dropped,   \* names of guards that are left out: the planted errors; {} in the specification
    Minimum    \* HaRules.minimum: the least number of copies in a group of the rule in-sync

(* A guard that a planted error can drop. *)
Guard(name, condition) == name \in Dropped \/ condition

Majority == "majority"
All      == "all"
InSync   == "in-sync"

(* voters, learners, returning: sets of nodes. rule, towards: names of rules; towards is None except under the rule all. since: the entry that
   made the rule (indexes begin with 1 here, with 0 in the code); 0 under the rule majority. dirs: the number of the directory by which a
   member is known; 0 for a node that is no member. *)
Nobody == [voters |-> {}, learners |-> {}, returning |-> {}, rule |-> Majority, towards |-> None, since |-> 0,
           dirs |-> [n \in Nodes |-> 0]]

Known(m) == m.voters \cup m.learners

(* raft/membership.py, changed(). Each operator returns the members after the change; the guards stand in CanChange. *)
Added(m, n, d)    == [m EXCEPT !.learners = @ \cup {n}, !.dirs[n] = d]
Promoted(m, n)    == [m EXCEPT !.voters = @ \cup {n}, !.learners = @ \ {n}, !.returning = @ \ {n}]
Demoted(m, n)     == [m EXCEPT !.voters = @ \ {n}, !.learners = @ \cup {n}]
Removed(m, n)     == [m EXCEPT !.voters = @ \ {n}, !.learners = @ \ {n}, !.returning = @ \ {n}, !.dirs[n] = 0]
Returned(m, n, d) == [m EXCEPT !.voters = @ \ {n}, !.learners = @ \cup {n}, !.dirs[n] = d,
                               !.returning = IF n \in m.voters THEN @ \cup {n} ELSE @]

(* raft/membership.py, _with_rule(): every change of rules goes through the rule all. `at` is the entry that makes the change. *)
WithRule(m, wanted, at) ==
    IF m.rule # All /\ "through-all" \notin Dropped
    THEN [m EXCEPT !.rule = All, !.towards = wanted, !.since = at]
    ELSE [m EXCEPT !.rule = wanted, !.towards = None, !.since = IF wanted = InSync THEN at ELSE 0]

(* The successors of `m` by one change (kind, node), which entry `at` makes; `dir` gives the present directory of each node. *)
Successors(m, at, dir) ==
    LET here == Known(m)
        keeps(n) == m.voters # {n}
    IN IF m.rule = All
       THEN {[kind |-> "rule", node |-> None, members |-> WithRule(m, m.towards, at)]}
       ELSE {[kind |-> "add", node |-> n, members |-> Added(m, n, dir[n])] : n \in Nodes \ here}
       \cup {[kind |-> "promote", node |-> n, members |-> Promoted(m, n)] : n \in m.learners}
       \cup {[kind |-> "demote", node |-> n, members |-> Demoted(m, n)] : n \in {v \in m.voters : keeps(v)}}
       \cup {[kind |-> "remove", node |-> n, members |-> Removed(m, n)] : n \in {v \in here : keeps(v)}}
       \cup {[kind |-> "return", node |-> n, members |-> Returned(m, n, dir[n])] : n \in {v \in here : keeps(v) /\ m.dirs[v] # dir[v]}}
       \cup {[kind |-> "rule", node |-> None, members |-> WithRule(m, r, at)] : r \in {Majority, InSync} \ {m.rule}}

(* raft/quorum.py, majority() and ballot(); raft/policy.py, Majority and All. *)
IsMajority(part, whole) == 2 * Cardinality(part \cap whole) > Cardinality(whole)

Elects(m, votes) == IF m.rule = All THEN m.voters \subseteq votes ELSE IsMajority(votes, m.voters)

(* Policy.quorum(): whether copies on `holders` suffice, of the nodes that are counted. *)
Suffices(m, holders, required) ==
    IF m.rule = Majority THEN IsMajority(holders, required) ELSE required \subseteq holders
=============================================================================
