class Claim: pass
class Agrees(Claim): pass
class Conserved(Claim): pass
class Exact(Claim): pass
class Identity(Claim): pass
class Limit(Claim): pass
