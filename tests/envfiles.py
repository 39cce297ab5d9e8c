"""A sample EnvironmentFile= that uses all of its syntax."""

TRICKY = r"""# a comment
; another one
#X00=commented out
X01=plain
  X02 = blanks around
X03='single $HOME \n "quotes"'
X04="double \" \\ \$ \` \n"
X05="two
lines"
X06=goes \
on
X07=back\slash \"bare\"
X08=
X09=it's "bare" # no comment
X10='one'"two" three
X11=postgresql://awa:p%40ss=word@localhost:5432/awa?a=b#c
X12 no value
12X=not a name
X13=first
X13=last
X14="goes \
on"
X15=grün
X16='  kept  '
X17=  "a"  'b'  c  d
""".replace("c  d", "c  d  ")
